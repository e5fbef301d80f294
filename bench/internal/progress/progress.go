// Package progress shows how far a measurement has come.
package progress

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Progress shows what is being done: on a terminal in one line that is written
// again and again, elsewhere in a line now and then. It is for one goroutine.
type Progress struct {
	out      *os.File
	terminal bool
	step     string
	said     time.Time
}

// sayEvery is how often a step is said again where lines stay.
const sayEvery = 10 * time.Second

// New shows on out, which may be a terminal.
func New(out *os.File) *Progress {
	_, err := unix.IoctlGetWinsize(int(out.Fd()), unix.TIOCGWINSZ)
	return &Progress{out: out, terminal: err == nil && os.Getenv("TERM") != "dumb"}
}

// Line prints a line, or several, that stay.
func (p *Progress) Line(text string) {
	p.Erase()
	fmt.Fprintln(p.out, text)
}

// Show says how far a step has come; so may be empty.
func (p *Progress) Show(step, so string) {
	text := step
	if so != "" {
		text += ": " + so
	}
	if p.terminal {
		p.Erase()
		fmt.Fprint(p.out, text)
		return
	}
	if step != p.step || time.Since(p.said) >= sayEvery {
		p.step, p.said = step, time.Now()
		fmt.Fprintln(p.out, text)
	}
}

// Erase takes the line off a terminal.
func (p *Progress) Erase() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
