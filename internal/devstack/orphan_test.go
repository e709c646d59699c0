package devstack_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/internal/devstack"
)

// parentEnv makes this test binary the parent of servers that is then killed.
const parentEnv = "DEVSTACK_TEST_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parentEnv) == "1" {
		parent()
	}
	goleak.VerifyTestMain(m)
}

// parent starts the servers, says where they are, and waits to be killed.
func parent() {
	ctx := context.Background()
	p, err := devstack.StartPostgres(ctx, devstack.PostgresOptions{})
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	fmt.Println(filepath.Dir(p.DataDir()), net.JoinHostPort(p.Host, fmt.Sprint(p.Port)))
	k, err := devstack.StartKafka(ctx, devstack.KafkaOptions{})
	switch {
	case err == nil:
		fmt.Println(filepath.Dir(filepath.Dir(k.LogFile(0))), k.Bootstrap()[0])
	case !errors.Is(err, devstack.ErrNoKafka):
		fmt.Println("failed", err)
		os.Exit(1)
	}
	runtime.GC() // nobody refers to the servers any more; they stay all the same
	runtime.GC()
	fmt.Println("ready")
	select {}
}

// kill -9 of the process that started the servers leaves neither a server nor a
// folder behind, and PostgreSQL shuts down in order.
func TestServersDoNotOutliveTheirParent(t *testing.T) {
	t.Parallel()
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), parentEnv+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var folders, addresses []string
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "ready"; {
		require.False(t, strings.HasPrefix(lines.Text(), "failed"), lines.Text())
		folder, address, ok := strings.Cut(lines.Text(), " ")
		require.True(t, ok)
		folders, addresses = append(folders, folder), append(addresses, address)
		require.DirExists(t, folder)
	}
	require.NotEmpty(t, folders)
	log, err := os.Open(filepath.Join(folders[0], "postgres.log")) // readable after its folder is gone
	require.NoError(t, err)
	defer log.Close()

	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait()
	require.Eventually(t, func() bool {
		for i := range folders {
			if _, err := os.Stat(folders[i]); !errors.Is(err, os.ErrNotExist) {
				return false
			}
			if c, err := net.Dial("tcp", addresses[i]); err == nil {
				c.Close()
				return false
			}
		}
		return true
	}, 30*time.Second, 20*time.Millisecond)
	said, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", log.Fd()))
	if err == nil { // Linux
		require.Contains(t, string(said), "received fast shutdown request")
		require.Contains(t, string(said), "database system is shut down")
	}
}
