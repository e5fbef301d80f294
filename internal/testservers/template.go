package testservers

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// installPostgres and installRedis say what to do about a missing server.
const (
	installPostgres = "apt-get install -y --no-install-recommends postgresql-15"
	installRedis    = "apt-get install -y --no-install-recommends redis-server"
)

// postgresBin finds the directory of PostgreSQL's programs.
func postgresBin() (string, error) {
	if bin := os.Getenv("WALRELAY_TEST_PGBIN"); bin != "" {
		if _, err := os.Stat(filepath.Join(bin, "postgres")); err != nil {
			return "", fmt.Errorf("WALRELAY_TEST_PGBIN must name the directory of the programs postgres and initdb: %w", err)
		}
		return bin, nil
	}
	return newestPostgres("/usr/lib/postgresql")
}

// newestPostgres looks where Debian keeps one directory a major version.
func newestPostgres(root string) (string, error) {
	var bin string
	newest := 0
	versions, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, v := range versions {
		dir := filepath.Join(root, v.Name(), "bin")
		major, err := strconv.Atoi(v.Name())
		if err != nil || major <= newest {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "postgres")); err == nil { // not just the clients
			newest, bin = major, dir
		}
	}
	if bin == "" {
		return "", fmt.Errorf("no PostgreSQL in %s; run: %s (or set WALRELAY_TEST_PGBIN to the directory of its programs)", root, installPostgres)
	}
	return bin, nil
}

// cacheDir is where downloads and templates are kept between runs. Root's own
// cache would be out of reach of the user that PostgreSQL runs as.
// fetch-postgres.sh has the same rule.
func cacheDir() (string, error) {
	dir := os.Getenv("WALRELAY_TEST_CACHE")
	if dir == "" && os.Getuid() == 0 {
		dir = "/var/cache/walrelay"
	}
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("set WALRELAY_TEST_CACHE: %w", err)
		}
		dir = filepath.Join(user, "walrelay")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// copyTemplate makes a data directory by copying one that initdb made once for
// all runs with these programs: a few hundredths of a second instead of one or
// two.
func copyTemplate(ctx context.Context, bin, data string, account *owner) error {
	template, err := template(ctx, bin, account)
	if err != nil {
		return err
	}
	return copyTree(ctx, template, data)
}

// template returns the directory to copy, and makes it where there is none. It
// is kept under the programs' version and place and the account that owns it.
func template(ctx context.Context, bin string, account *owner) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	version, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s/postgres --version: %w", bin, err)
	}
	key := fnv.New64a()
	fmt.Fprintln(key, bin, string(version), account.id(), initdbArgs)
	path := filepath.Join(cache, fmt.Sprintf("template-%x", key.Sum64()))

	// One makes it, the others wait: two cores have better things to do.
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	dir, err := newDir(account)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	data := filepath.Join(dir, "data")
	if err := initdb(ctx, bin, data, account); err != nil {
		return "", err
	}
	// Only a whole directory gets the final name; a part of one is what an
	// interrupted run left.
	part := path + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", err
	}
	if err := copyTree(ctx, data, part); err != nil {
		return "", err
	}
	if err := syncTree(part); err != nil {
		return "", err
	}
	return path, os.Rename(part, path)
}

// initdbArgs hold whatever must not depend on the machine.
var initdbArgs = []string{"-A", "trust", "-U", "postgres", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"}

// initdb makes a data directory; its parent must be the account's.
func initdb(ctx context.Context, bin, data string, account *owner) error {
	cmd := account.command(filepath.Dir(data), filepath.Join(bin, "initdb"), append(initdbArgs, "-D", data)...)
	return runFor(ctx, cmd)
}

// copyTree copies a directory with owners and permissions, sharing blocks
// where the file system can.
func copyTree(ctx context.Context, from, to string) error {
	return runFor(ctx, exec.Command("cp", "-a", "--reflink=auto", from, to))
}

// syncTree has the file system of path write all it holds, so that what is
// renamed afterwards is whole also after the machine stopped.
func syncTree(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Syncfs(int(dir.Fd()))
}

// runFor runs a command to its end, or to that of ctx.
func runFor(ctx context.Context, cmd *exec.Cmd) error {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, strings.TrimSpace(out.String()))
	}
	return nil
}
