package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
)

// Values of --log-format.
const (
	logText = "text"
	logJSON = "json"
)

func parseLevel(name string) (slog.Level, error) {
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}
	level, known := levels[name]
	if !known {
		return 0, fmt.Errorf("--log-level must be debug, info, warn or error, got %q", name)
	}
	return level, nil
}

// newLogger makes the logger that a valid configuration asks for.
func newLogger(w io.Writer, c *Config) *slog.Logger {
	level, err := parseLevel(c.LogLevel)
	if err != nil {
		level = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == logJSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// auditLogger writes where log does, whatever its level: who asks for less noise does not
// ask to lose the record of what operators did.
func auditLogger(log *slog.Logger) *slog.Logger { return slog.New(always{log.Handler()}) }

type always struct{ slog.Handler }

// Enabled implements slog.Handler.
func (always) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements slog.Handler.
func (a always) WithAttrs(attrs []slog.Attr) slog.Handler { return always{a.Handler.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (a always) WithGroup(name string) slog.Handler { return always{a.Handler.WithGroup(name)} }
