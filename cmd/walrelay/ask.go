package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// isTerminal reports whether somebody may be there to ask. It also takes
// /dev/null for a terminal, which then has no answer.
func isTerminal(f *os.File) bool {
	if f == nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func errNobodyToAsk() error {
	return usagef("teardown asks before it drops anything, and there is no terminal to ask on: give --yes to drop without")
}

// ask asks on the terminal. From here on a signal ends the process at once,
// since a read from a terminal cannot be cancelled: nothing is half done
// meanwhile, and what follows can be done again.
func (p *process) ask(question string) (bool, error) {
	signal.Reset(syscall.SIGTERM, syscall.SIGINT)
	fmt.Fprint(p.stdout, question)
	line, err := bufio.NewReader(p.stdin).ReadString('\n')
	if errors.Is(err, io.EOF) && line == "" {
		fmt.Fprintln(p.stdout)
		return false, errNobodyToAsk()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the answer: %w", err)
	}
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes", nil
}
