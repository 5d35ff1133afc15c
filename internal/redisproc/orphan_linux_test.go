package redisproc_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed58520471/redlock/internal/realredis"
	"github.com/seed58520471/redlock/internal/redisproc"
)

// The test runs itself as the parent, which is killed once it has launched a server.
func TestNoServerOutlivesItsParent(t *testing.T) {
	const role = "REDISPROC_TEST_PARENT_DIR"
	if dir := os.Getenv(role); dir != "" {
		p, err := redisproc.Launch(dir)
		require.NoError(t, err)
		fmt.Println(p.Addr)
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	realredis.Need(t)
	parent := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	parent.Env = append(os.Environ(), role+"="+t.TempDir())
	out, err := parent.Output()
	require.ErrorContains(t, err, "killed")
	var addr string
	_, err = fmt.Sscanln(string(out), &addr)
	require.NoError(t, err, "%s", out)
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, 10*time.Second, 10*time.Millisecond)
}
