//go:build unix

package devstack

import (
	"errors"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

const (
	sigInterrupt = syscall.SIGINT
	sigTerminate = syscall.SIGTERM
	sigQuit      = syscall.SIGQUIT
	sigKill      = syscall.SIGKILL
	sigStop      = syscall.SIGSTOP
	sigContinue  = syscall.SIGCONT
)

// serverUser is the account that PostgreSQL runs under. It is nil for an
// ordinary user, who runs the server as himself.
type serverUser struct {
	name     string
	uid, gid int
}

// unprivilegedUser finds an account for PostgreSQL, which refuses to run as
// root: "postgres" where Debian's package made it, else "nobody".
func unprivilegedUser() (*serverUser, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // nil is the documented answer for an ordinary user
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.Atoi(u.Uid)
		gid, errGID := strconv.Atoi(u.Gid)
		if errUID == nil && errGID == nil && uid != 0 {
			return &serverUser{name: name, uid: uid, gid: gid}, nil
		}
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and this machine has neither a user postgres nor a user nobody")
}

func (u *serverUser) apply(attr *syscall.SysProcAttr) {
	if u != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(u.uid), Gid: uint32(u.gid)}
	}
}

func (u *serverUser) own(path string) error {
	if u == nil {
		return nil
	}
	return os.Chown(path, u.uid, u.gid)
}

// ownGroup puts the child into its own process group, so that Ctrl-C in a
// terminal reaches us first and the servers stop in order.
func ownGroup(attr *syscall.SysProcAttr) { attr.Setpgid = true }

// lockFile holds an exclusive lock on path until the returned function is
// called or the process ends.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return func() { f.Close() }, nil
}
