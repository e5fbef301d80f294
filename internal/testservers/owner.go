package testservers

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// owner is the account that a server runs as. PostgreSQL refuses to run as
// root, so that root's servers run as the user postgres. Nil is ourselves.
type owner struct {
	uid, gid uint32
}

// postgresOwner is the account for PostgreSQL.
func postgresOwner() (*owner, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root and there is no user postgres; as root: useradd --system postgres: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &owner{uid: uint32(uid), gid: uint32(gid)}, nil
}

// id is the user id that the owner's files have.
func (o *owner) id() int {
	if o == nil {
		return os.Getuid()
	}
	return int(o.uid)
}

// own gives dir to the owner, after a look at whether the owner can get there.
func (o *owner) own(dir string) error {
	if o == nil {
		return nil
	}
	for up := filepath.Dir(dir); ; up = filepath.Dir(up) {
		info, err := os.Stat(up)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("the user postgres cannot enter %s; set TMPDIR to a directory that every user can enter, such as /tmp", up)
		}
		if up == filepath.Dir(up) {
			break
		}
	}
	return o.chown(dir)
}

// chown gives a file or directory to the owner.
func (o *owner) chown(path string) error {
	if o == nil {
		return nil
	}
	return os.Chown(path, int(o.uid), int(o.gid))
}

// command prepares a program that runs as the owner, in dir, in a process
// group of its own and with an environment that holds nothing of ours (PGDATA,
// PGPORT, a locale that the machine lacks).
func (o *owner) command(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if o != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: o.uid, Gid: o.gid, Groups: []uint32{}}
	}
	return cmd
}

// newDir makes a directory that the server's user can enter. Its path is
// short, since a Unix socket lies in it and has some 100 bytes for its name.
func newDir(account *owner) (string, error) {
	dir, err := os.MkdirTemp("", "walrelay-")
	if err != nil {
		return "", err
	}
	if err := account.own(dir); err != nil {
		os.RemoveAll(dir)
		return "", err
	}
	return dir, nil
}
