package scenarios

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock"
	"github.com/seed58520471/redlock/faultinject"
)

// holderEnv makes the test binary a holder on the nodes whose addresses it has.
const holderEnv = "SCENARIOS_HOLDER_ON"

// holderRenews makes it renew its lock.
const holderRenews = "SCENARIOS_HOLDER_RENEWS"

// holdAndTell takes a lock and says so. When it has slept for far longer than it
// meant to, it says what the first look at its lease says.
func holdAndTell(addrs string) (exit int) {
	var clients []redis.UniversalClient
	for addr := range strings.SplitSeq(addrs, ",") {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1}))
	}
	options := []redlock.Option{redlock.WithTTL(Real)}
	if os.Getenv(holderRenews) != "" {
		options = append(options, redlock.WithAutoExtend())
	}
	l, err := redlock.New(clients, options...)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	lease, err := l.Lock(ctx, orders)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("held")
	for slept := time.Now(); time.Since(slept) < Real && ctx.Err() == nil; {
		slept = time.Now()
		time.Sleep(Real / 100)
	}
	switch err := lease.Err(); {
	case errors.Is(err, redlock.ErrLost):
		fmt.Println("woke and is lost")
		time.Sleep(Real) // a renewal that was under way brings nothing back
		if !errors.Is(lease.Err(), redlock.ErrLost) {
			fmt.Println("and has it again")
		}
	default:
		fmt.Println("woke and believes:", err)
	}
	return 0
}

func TestPausedProcessIsLostWhenItWakes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no SIGSTOP")
	}
	for _, renews := range []string{"", "yes"} {
		t.Run("renews: "+renews, func(t *testing.T) { pausedProcessIsLost(t, renews) })
	}
}

func pausedProcessIsLost(t *testing.T, renews string) {
	t.Parallel()
	c := faultinject.Start(t, 3)
	addrs, err := c.Client("a").Addrs()
	require.NoError(t, err)
	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), holderEnv+"="+strings.Join(addrs, ","), holderRenews+"="+renews)
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	defer holder.Wait()
	defer holder.Process.Kill()
	c.Client("a").SetProcess(holder.Process)

	said := bufio.NewScanner(out)
	require.True(t, said.Scan())
	require.Equal(t, "held", said.Text())

	struck := c.Inject("at 50ms for 3s, client a: pause")
	l, err := redlock.New(c.Client("b").Redis(), redlock.WithTTL(10*Real))
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // it still sleeps then
	defer cancel()
	lease, err := l.Lock(ctx, orders)
	require.NoError(t, err)

	require.True(t, said.Scan())
	assert.Equal(t, "woke and is lost", said.Text())
	assert.NoError(t, lease.Err())
	require.NoError(t, struck.Check())
	require.NoError(t, lease.Unlock(ctx))
	assert.False(t, said.Scan(), said.Text())
}
