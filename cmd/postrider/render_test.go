package main

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/backfill"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/doctor"
	"github.com/postrider/postrider/internal/peek"
	"github.com/postrider/postrider/internal/reconcile"
	"github.com/postrider/postrider/internal/recovery"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/internal/replay"
	"github.com/postrider/postrider/internal/shadow"
	"github.com/postrider/postrider/internal/verify"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/parking"
)

// longName is as long as the longest name of a topic, and does to a terminal what a hostile row could.
var longName = "\x1b[31m" + strings.Repeat("n", 230) + "\n\tthe\u202eend\x07"

// filled is a T in which everything is set, and every text is longName.
func filled[T any]() T {
	var v T
	fill(reflect.ValueOf(&v).Elem())
	return v
}

func fill(v reflect.Value) {
	if !v.CanSet() {
		return
	}
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2026, 11, 29, 22, 10, 37, 123456789, time.UTC)))
		return
	case json.RawMessage:
		text, _ := json.Marshal(map[string]string{"from": longName, "to": longName, "reason": longName, "other": longName})
		v.SetBytes(text)
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(longName)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(min(1_234_567_890_123, int64(1)<<(v.Type().Bits()-2)))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(min(1_234_567_890_123, uint64(1)<<(v.Type().Bits()-2)))
	case reflect.Float64:
		v.SetFloat(1234567.8)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
		fill(v.Index(1))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	}
}

// screens are what the commands print for people, by the function that makes the table.
func screens() map[string]func(io.Writer) error {
	writing := func(out io.Writer) *app { return newApp(out, io.Discard) }
	at := &position{cfg: new(config.Config)}
	at.cfg.Publisher.Name = longName
	withoutPayload := func(r peek.Report) peek.Report {
		for i := range r.First {
			r.First[i].Key, r.First[i].Value, r.First[i].Headers = nil, nil, nil
		}
		return r
	}
	outcomes := func(of ...string) []peek.Count {
		counts := filled[[]peek.Count]()
		for i := range counts {
			counts[i].Outcome = of[i]
		}
		return counts
	}
	whole, bare := filled[reconciled](), filled[reconciled]()
	whole.Repair.Command, bare.Repair = "postrider replay --resume 7", nil
	bare.Copies, bare.Findings.Missing[0].Offset = reconcile.Copies{}, nil
	return map[string]func(io.Writer) error{
		"printStatus":     func(out io.Writer) error { return printStatus(out, filled[checkpoint.Status]()) },
		"printPublishers": func(out io.Writer) error { return printPublishers(out, filled[checkpoint.Listing]()) },
		"printPeek":       func(out io.Writer) error { return printPeek(out, withoutPayload(filled[peek.Report]())) },
		"printCounts": func(out io.Writer) error {
			printCounts(out, append(outcomes(peek.Publish, peek.Held), outcomes(peek.Park, peek.Halt)...))
			return nil
		},
		"printVerify": func(out io.Writer) error { return printVerify(out, filled[verify.Report]()) },
		"history": func(out io.Writer) error {
			o := checkpointHistoryOptions{out: out, all: true}
			return o.line(filled[checkpoint.Entry]())
		},
		"advance": func(out io.Writer) error {
			o := checkpointAdvanceOptions{app: writing(out)}
			uncounted := filled[advanceResult]()
			uncounted.Skipped = nil
			return cmp2(o.print(filled[advanceResult]()), o.print(uncounted))
		},
		"accept": func(out io.Writer) error {
			o := checkpointAcceptOptions{app: writing(out)}
			return o.print(at, filled[acceptResult]())
		},
		"printDrop": func(out io.Writer) error {
			uncounted := filled[dropResult]()
			uncounted.Unpublished = nil
			return cmp2(printDrop(out, filled[dropResult](), filled[checkpoint.State](), longName), printDrop(out, uncounted, checkpoint.State{}, ""))
		},
		"print pause": func(out io.Writer) error {
			o := pauseOptions{out: out}
			return o.print(filled[paused]())
		},
		"preview": func(out io.Writer) error {
			o := backfillOptions{app: writing(out)}
			return o.printPreview(filled[backfill.Preview]())
		},
		"printGroups": func(out io.Writer) error { return printGroups(out, filled[[]outbox.Group]()) },
		"print backfill": func(out io.Writer) error {
			o := backfillOptions{app: writing(out)}
			return o.print(filled[backfill.Outcome]())
		},
		"recover": func(out io.Writer) error {
			o := recoverOptions{app: writing(out)}
			ended := filled[recovery.Report]()
			ended.Evidence.OpenTask, ended.DryRun = nil, false
			return cmp2(o.print(filled[recovery.Report](), nil), o.print(ended, nil))
		},
		"printPreview": func(out io.Writer) error { return printPreview(out, filled[replay.Preview](), 1_000_000) },
		"printItems":   func(out io.Writer) error { return printItems(out, filled[[]reissue.Item](), 1_000_000) },
		"printTasks":   func(out io.Writer) error { return printTasks(out, filled[[]reissue.Task]()) },
		"printTask":    func(out io.Writer) error { return printTask(out, filled[reissue.Task]()) },
		"printReconciled": func(out io.Writer) error {
			return cmp2(printReconciled(out, whole), printReconciled(out, bare))
		},
		"doctor": func(out io.Writer) error {
			p := doctorPrinter{out: out, ascii: true}
			p.tell(filled[doctor.Finding]())
			p.summary(filled[doctor.Report]())
			return nil
		},
		"printTrail": func(out io.Writer) error {
			trail := filled[reconcile.Trail]()
			refused := filled[reconcile.Trail]()
			refused.Row.Refused, refused.NotProved = "", ""
			return cmp2(printTrail(out, &trail), printTrail(out, &refused))
		},
		"purge": func(out io.Writer) error {
			o := purgeOptions{out: out}
			kept := filled[outbox.PurgeResult]()
			kept.UpTo = 0
			for i := range kept.Tables {
				for j := range kept.Tables[i].Partitions {
					kept.Tables[i].Partitions[j].Kept = ""
				}
			}
			return cmp2(o.print(filled[outbox.PurgeResult]()), o.print(kept))
		},
		"printListing": func(out io.Writer) error { return printListing(out, filled[parking.Listing]()) },
		"printParked": func(out io.Writer) error {
			e := filled[parking.Detail]()
			return printParked(out, &e, false)
		},
		"print shadow": func(out io.Writer) error {
			o := shadowOptions{}
			r := filled[shadow.Report]()
			return o.print(out, &r)
		},
		"setup": func(out io.Writer) error {
			s := setup{opts: &setupOptions{out: out}}
			return s.note(filled[step]())
		},
	}
}

// cmp2 is the first error of two.
func cmp2(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// No table is wider than 100 columns, whatever names are in it, and nothing of a name reaches
// the terminal that does something to it.
func TestTablesFitTheScreen(t *testing.T) {
	t.Parallel()
	for name, render := range screens() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := render(&out); err != nil {
				t.Fatal(err)
			}
			if out.Len() == 0 {
				t.Fatal("nothing was printed")
			}
			narrow(t, out.String())
			acts := func(r rune) bool { return r != '\n' && r != ' ' && !unicode.IsGraphic(r) }
			if i := strings.IndexFunc(out.String(), acts); i >= 0 {
				t.Errorf("a character that acts: %q", out.String()[max(0, i-20):min(out.Len(), i+20)])
			}
		})
	}
}

// Whoever makes a table is in the test above.
func TestEveryTableIsRendered(t *testing.T) {
	t.Parallel()
	var makers []string
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") || f.Name() == "grid.go" {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && makesTable(fn) {
				makers = append(makers, strings.TrimSuffix(f.Name(), ".go")+"."+fn.Name.Name)
			}
		}
	}
	slices.Sort(makers)
	want := []string{
		"backfill_print.print", "backfill_print.printGroups", "backfill_print.printPreview", "checkpoint_drop.printDrop", "checkpoint_list.printPublishers",
		"checkpoint_peek.printCounts", "checkpoint_peek.printPeek", "checkpoint_show.printStatus", "parked_list.printListing", "parked_show.printParked",
		"pause.print", "reconcile_print.printFindings", "reconcile_print.printReconciled", "recover_print.groups", "recover_print.rows",
		"replay_print.printItems", "replay_print.printPreview", "replay_tasks.printTask", "replay_tasks.printTasks", "run_shadow.print",
		"run_shadow.printSamples", "trace.printTrail",
	}
	if !slices.Equal(makers, want) {
		t.Errorf("these make tables: %q\nand these are rendered in TestTablesFitTheScreen: %q", makers, want)
	}
}

func makesTable(fn *ast.FuncDecl) (makes bool) {
	ast.Inspect(fn, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if name, ok := call.Fun.(*ast.Ident); ok {
				makes = makes || slices.Contains([]string{"newTable", "newGrid"}, name.Name)
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
				if pkg, ok := sel.X.(*ast.Ident); ok {
					makes = makes || pkg.Name == "tabwriter"
				}
			}
		}
		return !makes
	})
	return makes
}
