package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// tick is the unit of times in /proc/PID/stat, 1/100 s on every Linux that Go
// runs on.
const tick = 10 // milliseconds

// cpuOf is the processor time, in milliseconds, of a server since its start: of
// its first process, the children that it has reaped, and those that live.
// https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
func cpuOf(server int) (int64, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	var total int64
	found := false
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// The second field is the name in parentheses and may hold anything.
		fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
		if len(fields) < 15 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, _ := strconv.Atoi(string(fields[1]))
		if pid != server && parent != server {
			continue
		}
		found = found || pid == server
		for _, field := range fields[11:15] { // utime, stime, and those of the reaped
			n, err := strconv.ParseInt(string(field), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", path, err)
			}
			total += n * tick
		}
	}
	if !found {
		return 0, fmt.Errorf("the server's process %d is not in /proc", server)
	}
	return total, nil
}
