package slot

import (
	"os"
	"syscall"
	"testing"
)

// chown gives a file to the owner of another.
func chown(t *testing.T, file string, like os.FileInfo) {
	t.Helper()
	stat := like.Sys().(*syscall.Stat_t)
	if err := os.Chown(file, int(stat.Uid), int(stat.Gid)); err != nil {
		t.Fatal(err)
	}
}
