package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// pty opens a terminal of 40 columns and returns both of its ends.
func pty(t *testing.T) (outside, inside *os.File) {
	t.Helper()
	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { outside.Close() })
	fd := int(outside.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	inside, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inside.Close() })
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: 40}); err != nil {
		t.Fatal(err)
	}
	return outside, inside
}

func TestStatusIsRedrawnBelowTheLinesOfATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	outside, inside := pty(t)
	s := newScreen(inside)
	s.status("on its way")
	s.line("a line")
	s.status(strings.Repeat("é", 100))
	s.status("")
	fmt.Fprint(inside, "end")
	var got strings.Builder
	buf := make([]byte, 1024)
	for !strings.HasSuffix(got.String(), "end") {
		n, err := outside.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(buf[:n])
	}
	const erase = "\r\x1b[K"
	want := "  0.0 s  on its way" + erase + "a line\r\n  0.0 s  on its way" +
		erase + "  0.0 s  " + strings.Repeat("é", 30) + erase + "end"
	if got.String() != want {
		t.Errorf("drew\n%q\nwant\n%q", got.String(), want)
	}
}

func TestStatusIsALineNowAndThenWithoutATerminal(t *testing.T) {
	out, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	s := newScreen(out)
	s.status("one")
	s.status("two") // too soon
	s.plain = s.plain.Add(-plainEvery)
	s.status("three")
	s.status("")
	raw, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if want := "  0.0 s  one\n  0.0 s  three\n"; string(raw) != want {
		t.Errorf("printed %q, want %q", raw, want)
	}
}
