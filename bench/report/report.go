// Package report makes the benchmark's page and its charts from what a run has written down. All that it says is
// computed from that one run: what was not measured is said as missing, and what was wrong does not count as speed.
package report

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/postrider/postrider/bench/result"
)

// Folder is where the charts lie, beside the page that shows them.
const Folder = "benchmarks"

// Write makes docs/benchmarks.md and docs/benchmarks/*.svg. A chart for which the run has no figures is removed, so
// that none of an earlier run stays beside the page of this one. The same run gives the same bytes.
// Errors are those of the file system.
func Write(run result.Run, docs string) error {
	dir := filepath.Join(docs, Folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	v := view{run}
	drawn := map[string]chart{}
	for _, c := range charts {
		path := filepath.Join(dir, c.file)
		svg := c.draw(v)
		if svg == nil {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			continue
		}
		if err := os.WriteFile(path, svg, 0o644); err != nil {
			return err
		}
		drawn[c.file] = c
	}
	return os.WriteFile(filepath.Join(docs, "benchmarks.md"), page(v, drawn), 0o644)
}

// page puts the sections one under the other.
func page(v view, drawn map[string]chart) []byte {
	p := &markdown{drawn: drawn}
	p.line("# Benchmarks")
	p.line("<!-- Written by `make bench`, from one run. Changes by hand are lost at the next one. -->")
	for _, section := range []func(view, *markdown){
		summary, targetSection,
		drainSection, compressionSection, latencySection, scaleSection, idleSection, outageSection, hugeSection,
		betterSection, notesSection, methodSection, repeatSection,
	} {
		section(v, p)
	}
	return []byte(strings.TrimRight(p.String(), "\n") + "\n")
}
