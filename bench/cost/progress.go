package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// progress shows what is being done: on a terminal in one line that is written
// again and again, elsewhere in a line now and then. It is for one goroutine.
type progress struct {
	out      *os.File
	terminal bool
	step     string
	said     time.Time
}

// sayEvery is how often a step is said again where lines stay.
const sayEvery = 10 * time.Second

func newProgress(out *os.File) *progress {
	_, err := unix.IoctlGetWinsize(int(out.Fd()), unix.TIOCGWINSZ)
	return &progress{out: out, terminal: err == nil && os.Getenv("TERM") != "dumb"}
}

// line prints a line, or several, that stay.
func (p *progress) line(text string) {
	p.erase()
	fmt.Fprintln(p.out, text)
}

// show says how far a step has come; so may be empty.
func (p *progress) show(step, so string) {
	text := step
	if so != "" {
		text += ": " + so
	}
	if p.terminal {
		p.erase()
		fmt.Fprint(p.out, text)
		return
	}
	if step != p.step || time.Since(p.said) >= sayEvery {
		p.step, p.said = step, time.Now()
		fmt.Fprintln(p.out, text)
	}
}

// erase takes the line off a terminal.
func (p *progress) erase() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
