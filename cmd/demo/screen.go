package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// screen prints lines and, on a terminal, one line below them that is drawn
// again and again. Elsewhere, that line is printed now and then.
type screen struct {
	out      *os.File
	terminal bool
	color    bool
	started  time.Time

	mu      sync.Mutex
	current string    // the status line as drawn
	plain   time.Time // when a status was last printed as a line
}

// plainEvery is how often the status is printed where it cannot be redrawn.
const plainEvery = 5 * time.Second

func newScreen(out *os.File) *screen {
	s := &screen{out: out, started: time.Now()}
	s.terminal = s.width() > 0 && os.Getenv("TERM") != "dumb"
	s.color = s.terminal && os.Getenv("NO_COLOR") == ""
	return s
}

// width is the terminal's, or 0 if there is none. It is asked each time, since
// windows change.
func (s *screen) width() int {
	size, err := unix.IoctlGetWinsize(int(s.out.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	if size.Col == 0 {
		return 80 // a terminal that does not know
	}
	return int(size.Col)
}

// line prints a line, or several.
func (s *screen) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	fmt.Fprintln(s.out, text)
	s.draw()
}

// say prints what somebody did, and when.
func (s *screen) say(who, format string, args ...any) {
	s.line(fmt.Sprintf("%s  %-9s %s", s.dim(s.at(time.Now())), who, fmt.Sprintf(format, args...)))
}

// at is a time as it is printed: since the start.
func (s *screen) at(t time.Time) string { return fmt.Sprintf("%5.1f s", t.Sub(s.started).Seconds()) }

// status replaces the status line; an empty one takes it away.
func (s *screen) status(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.terminal {
		if text != "" && time.Since(s.plain) >= plainEvery {
			s.plain = time.Now()
			fmt.Fprintf(s.out, "%s  %s\n", s.at(s.plain), text)
		}
		return
	}
	s.erase()
	s.current = text
	s.draw()
}

// erase takes the status line off the terminal; draw puts it there.
func (s *screen) erase() {
	if s.current != "" {
		fmt.Fprint(s.out, "\r\x1b[K")
	}
}

func (s *screen) draw() {
	if s.current == "" {
		return
	}
	text := []rune(s.at(time.Now()) + "  " + s.current)
	// One column short, or the terminal would go to its next line.
	if limit := s.width() - 1; limit > 0 && len(text) > limit {
		text = text[:limit]
	}
	fmt.Fprint(s.out, s.paint("7", string(text)))
}

func (s *screen) paint(code, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s *screen) bold(text string) string  { return s.paint("1", text) }
func (s *screen) dim(text string) string   { return s.paint("2", text) }
func (s *screen) red(text string) string   { return s.paint("1;31", text) }
func (s *screen) green(text string) string { return s.paint("1;32", text) }

// indent puts two spaces before each line.
func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  ")
}
