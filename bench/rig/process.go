package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/postrider/postrider/bench/result"
)

// Command says how a child is started.
type Command struct {
	Path string
	Args []string
	// Env is added to the environment of this process.
	Env []string
	// Dir is the working folder; "" is this process's.
	Dir string
	// LogFile gets stdout and stderr.
	LogFile string
}

// Process is a running child. It does not outlive this process, whatever ends it.
type Process struct {
	PID int
	// Spawned is the moment just before it was started.
	Spawned time.Time

	logFile string
	done    chan struct{}
	// err and usage are to be read after done.
	err   error
	usage syscall.Rusage
}

// Start starts a child in a process group of its own, so that Ctrl-C reaches us first. The goroutine keeps its thread: the
// parent-death signal comes when the starting thread ends, and Go ends idle threads as it likes.
func Start(c Command) (*Process, error) {
	log, err := os.OpenFile(c.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	p := &Process{done: make(chan struct{}), logFile: c.LogFile}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		cmd := exec.Command(c.Path, c.Args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, log, log
		cmd.Env = append(os.Environ(), c.Env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		p.Spawned = time.Now()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.PID = cmd.Process.Pid
		started <- nil
		p.err = cmd.Wait()
		if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			p.usage = *usage
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	return p, nil
}

// Done is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is how the child ended; to be asked after Done. The error shows the end of its log.
func (p *Process) Err() error {
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("%w\n%s", p.err, p.LogTail())
}

// CPU is what the child has used in its whole life; to be asked after Done.
func (p *Process) CPU() result.CPU {
	return result.CPU{User: seconds(p.usage.Utime), System: seconds(p.usage.Stime)}
}

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// LogTail is the end of the child's output.
func (p *Process) LogTail() string { return tail(p.logFile, 3000) }

// Stop sends SIGTERM to the child's group, and SIGKILL when ctx ends or 25 s have passed. A child that ended by itself, or by the
// signal, is no error.
func (p *Process) Stop(ctx context.Context) error {
	_ = syscall.Kill(-p.PID, syscall.SIGTERM) // it may be gone already
	select {
	case <-p.done:
		return nil
	case <-time.After(25 * time.Second):
	case <-ctx.Done():
	}
	_ = syscall.Kill(-p.PID, syscall.SIGKILL)
	<-p.done
	return errors.New("it did not end in order and was killed")
}

// tail is the end of a text file, at most n bytes.
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
