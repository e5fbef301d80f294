// Package proc reads what processes took of the machine: Linux shows it in /proc.
package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// tick is the unit of times in /proc/PID/stat, 1/100 s on every Linux that Go
// runs on.
const tick = 10 * time.Millisecond

// CPU is the processor time of a process since its start, in steps of 10 ms.
// https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
func CPU(pid int) (time.Duration, error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "stat")
	fields, err := stat(path)
	if err != nil {
		return 0, err
	}
	return sum(path, fields[11:13])
}

// ServerCPU is the processor time of a server since its start, in steps of 10 ms:
// of its first process, the children that it has reaped, and those that live.
func ServerCPU(server int) (time.Duration, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	var total time.Duration
	found := false
	for _, path := range stats {
		fields, err := stat(path)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, _ := strconv.Atoi(string(fields[1]))
		if pid != server && parent != server {
			continue
		}
		found = found || pid == server
		used, err := sum(path, fields[11:15]) // its own, and that of the reaped
		if err != nil {
			return 0, err
		}
		total += used
	}
	if !found {
		return 0, fmt.Errorf("the server's process %d is not in /proc", server)
	}
	return total, nil
}

// stat reads the fields of a process from the third on: the second is the name in
// parentheses and may hold anything.
func stat(path string) ([][]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(fields) < 15 {
		return nil, fmt.Errorf("%s has only %d fields", path, len(fields))
	}
	return fields, nil
}

func sum(path string, fields [][]byte) (total time.Duration, err error) {
	for _, field := range fields {
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		total += time.Duration(n) * tick
	}
	return total, nil
}

// Peak is the most memory that a process had resident so far, in bytes. A process
// that has ended has none.
// https://man7.org/linux/man-pages/man5/proc_pid_status.5.html
func Peak(pid int) (int64, error) {
	kilobytes, err := value(pid, "status", "VmHWM:")
	return kilobytes << 10, err
}

// Written is how many bytes a process has handed to write calls, whatever they
// led to. Sockets that are sent to count for nothing.
// https://man7.org/linux/man-pages/man5/proc_pid_io.5.html
func Written(pid int) (int64, error) { return value(pid, "io", "wchar:") }

// value is the number behind a name in a file of a process.
func value(pid int, file, name string) (int64, error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), file)
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(raw) {
		fields := bytes.Fields(line)
		if len(fields) > 1 && string(fields[0]) == name {
			return strconv.ParseInt(string(fields[1]), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s does not say %s", path, name)
}
