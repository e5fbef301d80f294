package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// machine is what was measured on.
type machine struct {
	PostgreSQL string  `json:"postgresql"`
	Redis      string  `json:"redis"`
	Go         string  `json:"go"`
	Processor  string  `json:"processor"`
	Processors int     `json:"processors"`
	Load       float64 `json:"load_average"` // of the last minute before it began
	Walrelay   string  `json:"walrelay"`
}

func newMachine(walrelay string) (m machine, err error) {
	m = machine{Go: runtime.Version(), Processors: runtime.NumCPU(), Processor: processor()}
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return m, err
	}
	if _, err := fmt.Sscan(string(raw), &m.Load); err != nil {
		return m, err
	}
	version, err := exec.Command(walrelay, "version").Output()
	if err != nil {
		return m, fmt.Errorf("%s version: %w", walrelay, err)
	}
	m.Walrelay = strings.TrimSpace(string(version))
	return m, nil
}

// processor is the model's name, where Linux tells it.
func processor() string {
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// versions asks the servers of a world what they are.
func (w *world) versions(ctx context.Context, version string) error {
	m := &w.report.Machine
	m.PostgreSQL, _, _ = strings.Cut(version, " ") // without the packager's
	client := w.client()
	defer client.Close()
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	for line := range strings.Lines(info) {
		if version, ok := strings.CutPrefix(line, "redis_version:"); ok {
			m.Redis = strings.TrimSpace(version)
		}
	}
	return nil
}

// busy reports whether others wanted more than a quarter of the processors in the
// minute before.
func (m machine) busy() bool { return m.Load > 0.25*float64(m.Processors) }

// String says it in a sentence.
func (m machine) String() string {
	return fmt.Sprintf("%s, PostgreSQL %s, Redis %s, built with %s; everything on one machine with %d processors (%s), load average %.2f before it began.",
		m.Walrelay, m.PostgreSQL, m.Redis, m.Go, m.Processors, m.Processor, m.Load)
}
