package publisher

import (
	"flag"
	"fmt"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
)

var update = flag.Bool("update", false, "write the table of docs/refusals.md anew")

const (
	refusalsPage = "../docs/refusals.md"
	answersHead  = "<!-- answers: go test ./publisher -run TestRefusalsPage -update -->\n"
	answersFoot  = "<!-- end of answers -->\n"
)

// answersTable is what judgeCode makes of every code that has a name.
func answersTable() string {
	about := []struct {
		v    verdict
		what string
	}{
		{acked, "published"},
		{retry, "the same bytes again, for ever"},
		{retryLeader, "as before, and the leaders are looked up again"},
		{unauthorized, "again with an alarm; fatal after `kafka.authorization_grace`; never a refusal"},
		{identityLost, "end offset compared: data lost by the cluster halts, else a new epoch"},
		{refused, "**refuses**: permanent for one record, which is looked for"},
		{alarming, "listed nowhere: again with an alarm, for ever"},
		{fatal, "the relay ends; no record is to blame"},
	}
	names := map[verdict][]string{}
	for code := kafka.Error(1); code < 130; code++ {
		if code.Title() != kafka.Error(9999).Title() {
			v := judgeCode(code).verdict
			names[v] = append(names[v], fmt.Sprintf("%d %s", int(code), code.Title()))
		}
	}
	var b strings.Builder
	b.WriteString("| what happens | broker's answers |\n|---|---|\n")
	for _, a := range about {
		fmt.Fprintf(&b, "| %s | %s |\n", a.what, strings.Join(names[a.v], ", "))
	}
	return b.String()
}

// case C37 (e), rule 20: the page's table of answers is what the code does, and its
// table of reasons names each reason there is, no more and no fewer.
func TestRefusalsPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(refusalsPage)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), answersHead)
	have, foot, ok2 := strings.Cut(rest, answersFoot)
	if !ok || !ok2 {
		t.Fatal("the page has no place for the answers")
	}
	want := answersTable()
	if *update {
		if err := os.WriteFile(refusalsPage, []byte(head+answersHead+want+answersFoot+foot), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if have != want {
		t.Error("docs/refusals.md is not current: run this test with -update")
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[a-z_`, ]+`) \\|").FindAllStringSubmatch(head, -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			listed = append(listed, strings.Trim(name, "`"))
		}
	}
	slices.Sort(listed)
	if reasons := reasonsOfCode(t); !slices.Equal(slices.Compact(listed), reasons) {
		t.Errorf("the page lists the reasons\n%v, the code has\n%v", listed, reasons)
	}
}

// reasonsOfCode are the values of event's constants of type Reason.
func reasonsOfCode(t *testing.T) []string {
	t.Helper()
	file, err := goparser.ParseFile(token.NewFileSet(), "../event/event.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Reason" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, value)
		}
		return true
	})
	slices.Sort(all)
	return all
}
