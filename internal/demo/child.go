package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/postrider/postrider/internal/operr"
)

// stopPatience is longer than the relay's own shutdown_timeout.
const stopPatience = 40 * time.Second

// child is the relay as a process of its own. Its methods are for one goroutine.
type child struct {
	binary, config string
	// logFile gets what the relay writes, over its restarts.
	logFile string
	// pidFile lets devstack end the relay when this process is killed itself.
	pidFile string
	proc    *process
}

// process is one life of the relay.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // read it after done
}

func newChild(binary, config, root string) *child {
	return &child{
		binary: binary, config: config,
		logFile: filepath.Join(root, "relay.log"), pidFile: filepath.Join(root, "relay.pid"),
	}
}

// start runs `postrider run`.
func (c *child) start() error {
	log, err := os.OpenFile(c.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(c.binary, "run", "--config", c.config)
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own: Ctrl-C reaches us, and we end the relay.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go p.live(started)
	if err := <-started; err != nil {
		return fmt.Errorf("start the relay: %w", err)
	}
	c.proc = p
	return os.WriteFile(c.pidFile, []byte(strconv.Itoa(c.pid())+"\n"), 0o644)
}

// live keeps its OS thread: the parent-death signal comes when the thread ends
// that started the child.
func (p *process) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	close(p.done)
}

func (c *child) pid() int { return c.proc.cmd.Process.Pid }

// ended is closed when the relay does not run any more.
func (c *child) ended() <-chan struct{} { return c.proc.done }

// kill is kill -9; it tolerates a relay that has ended or never started.
func (c *child) kill() {
	if c.proc == nil {
		return
	}
	_ = c.proc.cmd.Process.Kill() // it has ended already: what was wanted
	<-c.proc.done
	_ = os.Remove(c.pidFile)
}

// stop asks the relay to drain and end; an error says that it did not end with 0.
func (c *child) stop() error {
	defer c.kill()
	if err := c.proc.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timer := time.NewTimer(stopPatience)
	defer timer.Stop()
	select {
	case <-c.proc.done:
		if c.proc.err != nil {
			return fmt.Errorf("the relay did not end in order: %w: %s", c.proc.err, lastLine(c.logFile))
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("the relay did not end within %s of SIGTERM", stopPatience)
	}
}

// unexpected says why a relay ended by itself, with its own class.
func (c *child) unexpected() error {
	err := fmt.Errorf("%w: %s", cause(c.proc.err), lastLine(c.logFile))
	return &operr.Error{
		Class: classOf(c.proc.err), Op: "demo", Subject: "the relay ended by itself", Err: err,
		Hint: "postrider demo --keep, which leaves the relay's log",
	}
}

func cause(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// classOf turns a child's exit code back into the class behind it.
func classOf(err error) operr.Class {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return operr.Class(exit.ExitCode())
	}
	return operr.Internal
}

// setUp runs `postrider setup` and says in a line what it made.
func setUp(ctx context.Context, binary, config string) (string, error) {
	cmd := exec.CommandContext(ctx, binary, "setup", "--config", config, "--create-outbox", "--json")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out, diagnostics bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnostics
	if err := cmd.Run(); err != nil {
		return "", &operr.Error{
			Class: classOf(err), Op: "run", Subject: "postrider setup",
			Err: fmt.Errorf("%w: %s", err, strings.TrimSpace(diagnostics.String())),
		}
	}
	var made struct {
		Steps []struct{ What string } `json:"steps"`
	}
	if err := json.Unmarshal(out.Bytes(), &made); err != nil {
		return "", fmt.Errorf("read what postrider setup did: %w", err)
	}
	var names []string
	for _, step := range made.Steps {
		names = append(names, step.What)
	}
	return strings.Join(names, ", "), nil
}

// lastLine is the end of a log, for an error message.
func lastLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}
