package main

import (
	"io"
	"log/slog"
)

// newLogger makes the one logger of the process.
func newLogger(w io.Writer, cfg *Config) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.LogLevel}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
