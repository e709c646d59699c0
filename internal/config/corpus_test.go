package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/operr"
)

// TestCorpus runs every file of testdata: *.good.yml must load, *.bad.yml must give
// exactly the problems that stand in it behind "#! ". One that ends in … is compared
// up to there: the rest is another package's wording.
func TestCorpus(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/*.yml")
	if err != nil || len(names) < 20 {
		t.Fatalf("corpus: %d files, %v", len(names), err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Parse(name, data, testEnvironment(nil))
			if strings.HasSuffix(name, ".good.yml") {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			checkProblems(t, err, expectedProblems(string(data)))
		})
	}
}

func expectedProblems(text string) []string {
	var want []string
	for line := range strings.Lines(text) {
		if problem, ok := strings.CutPrefix(line, "#! "); ok {
			want = append(want, strings.TrimSuffix(problem, "\n"))
		}
	}
	return want
}

func checkProblems(t *testing.T, err error, want []string) {
	t.Helper()
	problems := new(Problems)
	if !errors.As(err, &problems) {
		t.Fatalf("got %v, want problems %q", err, want)
	}
	if class := operr.ClassOf(err); class != operr.Config {
		t.Errorf("class %d, want that of a configuration error", class)
	}
	var got []string
	for _, p := range problems.List {
		got = append(got, p.String())
	}
	// The order inside a line is not a promise.
	slices.Sort(got)
	slices.Sort(want)
	if !slices.EqualFunc(got, want, sameProblem) {
		t.Errorf("problems:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, secret := range []string{pgSecret, kafkaSecret} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows a secret: %v", err)
		}
	}
}

func sameProblem(got, want string) bool {
	if prefix, ok := strings.CutSuffix(want, "…"); ok {
		return strings.HasPrefix(got, prefix)
	}
	return got == want
}
