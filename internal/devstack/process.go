package devstack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// errEnded stands for the exit status 0 of a server that should have gone on.
var errEnded = errors.New("exit status 0")

// command says how a child is started.
type command struct {
	name string
	args []string
	dir  string
	env  []string
	// logFile receives stdout and stderr, appended.
	logFile string
	user    *serverUser
	// orphanSignal is what the child gets when this process dies (Linux).
	orphanSignal syscall.Signal
}

// process is a running child.
type process struct {
	pid  int
	proc *os.Process
	// done is closed when the child has ended and was waited for.
	done chan struct{}
	// err is what Wait returned; read it after done.
	err error
}

// start runs c in the background. The goroutine keeps its OS thread until the
// child has ended: the parent-death signal comes when the starting thread ends,
// not the process, and Go ends idle threads as it likes.
func (c command) start() (*process, error) {
	log, err := os.OpenFile(c.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		cmd := c.exec(context.Background())
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid, p.proc = cmd.Process.Pid, cmd.Process
		started <- nil
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	return p, nil
}

// run executes c to its end and returns its output with the error.
func (c command) run(ctx context.Context) error {
	cmd := c.exec(ctx)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", c.name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (c command) exec(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.name, c.args...)
	cmd.Dir, cmd.Env = c.dir, c.env
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	ownGroup(cmd.SysProcAttr)
	c.user.apply(cmd.SysProcAttr)
	if c.orphanSignal != 0 {
		dieWithParent(cmd.SysProcAttr, c.orphanSignal)
	}
	return cmd
}

// signal sends sig; a child that has ended already is no error.
func (p *process) signal(sig syscall.Signal) error {
	if err := p.proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// stop sends sig and waits; after the timeout it kills the child and says so.
func (p *process) stop(sig syscall.Signal, timeout time.Duration) error {
	if err := p.signal(sig); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(timeout):
	}
	if err := p.signal(sigKill); err != nil {
		return err
	}
	<-p.done
	return fmt.Errorf("process %d did not end within %s of %s and was killed", p.pid, timeout, sig)
}

// exited says whether the child has ended.
func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// waitReady calls probe every interval until it succeeds. It gives up when ctx
// ends or the child does, and then shows the end of the child's log.
func (p *process) waitReady(ctx context.Context, what, logFile string, probe func(context.Context) error) error {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended while starting: %w\n%s", what, cmp.Or(p.err, errEnded), tail(logFile, 2000))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready (%w): %w\n%s", what, context.Cause(ctx), err, tail(logFile, 2000))
		case <-tick.C:
		}
	}
}

// tail is the end of a text file, at most n bytes, for error messages.
func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	if len(b) > n {
		b = b[len(b)-n:]
	}
	return strings.TrimSpace(string(b))
}
