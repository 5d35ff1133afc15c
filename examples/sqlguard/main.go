// Command sqlguard lets a SQL database refuse the holder of a lock that has passed to
// somebody else. The database is SQLite, in this process; with PostgreSQL or MySQL
// only the driver and the placeholders differ.
//
//	go run ./sqlguard
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/seed58520471/redlock/fence"
)

func main() {
	dir, err := os.MkdirTemp("", "sqlguard")
	if err != nil {
		log.Fatal(err)
	}
	err = run(os.Stdout, dir)
	os.RemoveAll(dir)
	if err != nil {
		log.Fatal(err)
	}
}

// The fencing tokens of two holders. In real life they are lease.Fence().
const earlier, later = 1796035000123456, 1796035000123457

func run(out io.Writer, dir string) error {
	a, err := open(dir)
	if err != nil {
		return err
	}
	defer a.db.Close()
	ctx := context.Background()
	if _, err := a.db.Exec(`INSERT INTO accounts (id, owner, balance) VALUES (7, 'nobody', 100)`); err != nil {
		return err
	}
	add := func(n int) func(int) int { return func(balance int) int { return balance + n } }
	steps := []struct {
		says string
		do   func() error
		want error
	}{
		{"the earlier holder adds 10", func() error { return a.deposit(ctx, earlier, 7, add(10)) }, nil},
		{"the earlier holder signs", func() error { return a.rename(ctx, earlier, 7, "earlier") }, nil},
		{"the later holder adds 5", func() error { return a.deposit(ctx, later, 7, add(5)) }, nil},
		{"the later holder signs", func() error { return a.rename(ctx, later, 7, "later") }, nil},
		{"the later holder signs again", func() error { return a.rename(ctx, later, 7, "later") }, nil},
		{"the earlier holder wakes, and adds 1000", func() error { return a.deposit(ctx, earlier, 7, add(1000)) }, fence.ErrStale},
		{"the earlier holder signs", func() error { return a.rename(ctx, earlier, 7, "earlier") }, fence.ErrStale},
		{"somebody signs without a token", func() error { return a.rename(ctx, 0, 7, "thief") }, fence.ErrInvalid},
		{"the later holder signs an account that is not there", func() error { return a.rename(ctx, later, 8, "later") }, fence.ErrNoRow},
	}
	for _, s := range steps {
		err := s.do()
		if !errors.Is(err, s.want) {
			return fmt.Errorf("%s: %v; want %v", s.says, err, s.want)
		}
		verdict := "done"
		if err != nil {
			verdict = err.Error()
		}
		fmt.Fprintf(out, "%-52s %s\n", s.says, verdict)
	}
	var owner string
	var balance int
	if err := a.db.QueryRow(`SELECT owner, balance FROM accounts WHERE id = 7`).Scan(&owner, &balance); err != nil {
		return err
	}
	fmt.Fprintf(out, "\naccount 7: %d, signed by %s\n", balance, owner)
	if owner != "later" || balance != 115 {
		return errors.New("a holder whose lock had passed has written")
	}
	return nil
}
