package main

import (
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"

	"github.com/postrider/postrider/internal/config"
)

// newLogger writes what the configuration asks for: console lines for people, JSON
// for machines, and with "auto" whichever of them reads w.
func newLogger(w io.Writer, cfg config.Log) zerolog.Logger {
	level, err := zerolog.ParseLevel(cfg.Level)
	if err != nil {
		level = zerolog.InfoLevel // the configuration was checked: cannot happen
	}
	if cfg.Format == config.LogConsole || cfg.Format == config.LogAuto && isTerminal(w) {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: !isTerminal(w) || os.Getenv("NO_COLOR") != ""}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && isatty.IsTerminal(file.Fd())
}
