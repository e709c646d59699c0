package devstack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// workdir is the temporary folder of one server.
type workdir struct {
	path string
	// janitor is nil for a folder that belongs to the caller.
	janitor *janitor
}

// newWorkdir makes a folder. With dir empty it is temporary and removed with
// the server; else it is dir, kept for the caller.
func newWorkdir(dir, kind string) (*workdir, error) {
	if dir != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		abs, err := filepath.Abs(dir)
		return &workdir{path: abs}, err
	}
	path, err := os.MkdirTemp("", "postrider-"+kind+"-")
	if err != nil {
		return nil, err
	}
	// PostgreSQL runs as another user where we are root: it has to get in.
	if err := os.Chmod(path, 0o755); err != nil {
		return nil, err
	}
	j, err := startJanitor(path)
	if err != nil {
		os.RemoveAll(path)
		return nil, err
	}
	return &workdir{path: path, janitor: j}, nil
}

func (w *workdir) join(elem ...string) string {
	return filepath.Join(append([]string{w.path}, elem...)...)
}

// remove deletes a temporary folder; it tolerates a second call.
func (w *workdir) remove() error {
	if w == nil || w.janitor == nil {
		return nil
	}
	err := os.RemoveAll(w.path)
	w.janitor.dismiss()
	return err
}

// janitor is a small shell that outlives us. It waits for the end of its
// standard input, which comes when this process ends, be it by kill -9; then it
// stops what still runs in the folder (systems without a parent-death signal)
// and deletes the folder.
type janitor struct {
	stdin *os.File
	cmd   *exec.Cmd
}

// The first argument is the folder. postmaster.pid's first line and the files
// *.pid hold the servers' process ids. The wait covers PostgreSQL's fast
// shutdown, which takes milliseconds, so the limit of 10 s is generous.
const janitorScript = `trap '' INT TERM HUP
read -r _
stop() {
  for f in "$1"/*.pid; do [ -f "$f" ] && kill -"$2" "$(head -n 1 "$f")" 2>/dev/null; done
}
stop "$1" INT
i=0
while [ -f "$1/data/postmaster.pid" ] && [ "$i" -lt 100 ]; do sleep 0.1; i=$((i+1)); done
stop "$1" KILL
rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
`

func startJanitor(path string) (*janitor, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command("/bin/sh", "-c", janitorScript, "postrider-janitor", path)
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	ownGroup(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("start the shell that removes temporary folders: %w", err)
	}
	j := &janitor{stdin: w, cmd: cmd}
	onDuty.Store(j, true)
	return j, nil
}

// onDuty holds every janitor that waits. A server that nobody refers to any
// more still runs; without this the garbage collector would close the pipe, and
// the janitor would take that for our death.
var onDuty sync.Map

// dismiss ends the janitor after the folder is gone.
func (j *janitor) dismiss() {
	if j.cmd.ProcessState != nil {
		return
	}
	onDuty.Delete(j)
	j.stdin.Close()
	timer := time.AfterFunc(15*time.Second, func() { _ = j.cmd.Process.Kill() })
	defer timer.Stop()
	_ = j.cmd.Wait()
}
