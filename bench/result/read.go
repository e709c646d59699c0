package result

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// File is the name of a run's file in its folder: the Environment on the first line, then one Result a line.
const File = "results.jsonl"

// Read gives the run whose File is in dir. A step that is there more than once counts with its last line (a resumed
// run repeats what had failed), in the place of its first. A last line without its end, left by a run that was
// killed, is dropped: the step was not finished. Any other line that is not what it should be is an error.
func Read(dir string) (Run, error) {
	path := filepath.Join(dir, File)
	data, err := os.ReadFile(path)
	if err != nil {
		return Run{}, err
	}
	whole := data[:bytes.LastIndexByte(data, '\n')+1]
	if len(whole) == 0 {
		return Run{}, fmt.Errorf("%s: no line in it: the run had not begun", path)
	}
	return parse(path, whole)
}

func parse(path string, data []byte) (Run, error) {
	var run Run
	at := map[string]int{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, len(data)+1)
	for n := 1; lines.Scan(); n++ {
		if n == 1 {
			if err := json.Unmarshal(lines.Bytes(), &run.Environment); err != nil {
				return Run{}, fmt.Errorf("%s:1: environment: %w", path, err)
			}
			continue
		}
		var r Result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return Run{}, fmt.Errorf("%s:%d: result: %w", path, n, err)
		}
		if i, again := at[r.Step]; again {
			run.Results[i] = r
			continue
		}
		at[r.Step] = len(run.Results)
		run.Results = append(run.Results, r)
	}
	return run, lines.Err()
}
