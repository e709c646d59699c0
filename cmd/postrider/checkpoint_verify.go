package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/verify"
)

type checkpointVerifyOptions struct {
	configFlag
	app   *app
	quick bool
	names int
	json  bool
}

func newCheckpointVerifyCommand(a *app) *cobra.Command {
	opts := checkpointVerifyOptions{app: a}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Prove that the position can be trusted",
		Long: "Holds the stored position against the slot, the system identifier, the timeline, the slot's birth, the WAL that is still there, the\n" +
			"publication, and the ticked-off snapshot against the table: every row must be covered by it, come on the stream, or be parked.\n" +
			"Rows that were deleted cannot be looked at. It changes nothing and works while a relay runs; the table is scanned once, and the\n" +
			"stream read from a temporary copy of the slot. Exit code 8 where something is wrong, with what to do.",
		Example: "  postrider checkpoint verify\n  postrider checkpoint verify --quick --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.names < 0 || opts.names > 10_000 {
				return usageError(cmd, fmt.Errorf("--names is %d; must be from 0 to 10000", opts.names))
			}
			return opts.run(cmd.Context())
		},
	}
	opts.add(cmd)
	cmd.Flags().BoolVar(&opts.quick, "quick", false, "leave out the table and the stream")
	cmd.Flags().IntVar(&opts.names, "names", 10, "name this `number` of rows that may be missing")
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *checkpointVerifyOptions) run(ctx context.Context) error {
	return o.withPosition(ctx, "verify", func(ctx context.Context, p *position) error {
		report, err := p.verify(ctx, o.app.err, verify.Options{Quick: o.quick, Names: o.names})
		if err != nil {
			return err
		}
		if o.json {
			return errors.Join(report.Err(), writeJSON(o.app.out, report))
		}
		return errors.Join(report.Err(), printVerify(o.app.out, report))
	})
}

func (p *position) verify(ctx context.Context, diagnostics io.Writer, o verify.Options) (verify.Report, error) {
	shown := newWALProgress(diagnostics)
	o.Progress = shown.reached
	report, err := verify.Run(ctx, p.conn, p.peek, p.desk, o)
	shown.done()
	return report, err
}

func printVerify(out io.Writer, r verify.Report) error {
	var b strings.Builder
	marks := map[string]string{checkpoint.VerdictOK: "✓", checkpoint.VerdictWrong: "✗", checkpoint.VerdictUnknown: "?"}
	for _, c := range r.Checks {
		wrapText(&b, marks[c.Verdict]+" "+c.Name+": ", c.Detail)
		if c.Fix != "" {
			wrapText(&b, "  fix: ", c.Fix)
		}
	}
	if r.Table != nil && len(r.Table.Names) > 0 {
		wrapText(&b, "  not covered, not on the stream: ", strings.Join(r.Table.Names, ", "))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// wrapText breaks a text between words to lines of at most 100 characters, the later ones
// below the first word.
func wrapText(b *strings.Builder, head, text string) {
	const indent = "    "
	lines := wrap(shown(head+text), screenWidth-len(indent))
	for i, line := range lines {
		if i > 0 {
			line = indent + line
		}
		b.WriteString(line + "\n")
	}
}
