// Command bench measures Postrider and its peers on one machine, between real servers, and writes docs/benchmarks.md. `make bench`
// runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/bench/contender"
	"github.com/postrider/postrider/bench/plan"
	"github.com/postrider/postrider/bench/report"
	"github.com/postrider/postrider/bench/result"
	"github.com/postrider/postrider/bench/rig"
	"github.com/postrider/postrider/bench/run"
)

func main() { os.Exit(execute()) }

func execute() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends at once; what runs then ends with this process.
	context.AfterFunc(ctx, stop)
	err := newCommand().ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "stopped; --resume goes on from here")
		return 130
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	return 1
}

type options struct {
	quick  bool
	dir    string
	resume bool
	only   string
	again  string
	rounds int
	report bool
	docs   string
	binary string
	list   bool

	match, forget *regexp.Regexp
	out           io.Writer
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure Postrider and its peers between real servers",
		Long: "Starts a PostgreSQL and a Kafka of its own, lets every contender drain the same backlog in interleaved rounds, measures latency,\n" +
			"scaling, rest, an outage and a huge transaction, checks that what arrived is right, and writes a page of it. Nothing else should\n" +
			"run on the machine meanwhile: at most an hour, with --quick five minutes. Ctrl-C stops it, --resume goes on.",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = cmd.OutOrStdout()
			if err := o.validate(); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.quick, "quick", false, "smaller sizes, one round, five minutes")
	f.StringVar(&o.dir, "dir", "", "`folder` for results, logs and the servers' data (default bench/.run; bench/.run/quick with --quick)")
	f.BoolVar(&o.resume, "resume", false, "go on with the run in --dir: what has a result is not measured again")
	f.StringVar(&o.only, "only", "", "measure only the steps whose names match this `regexp`, such as '^drain/'")
	f.StringVar(&o.again, "again", "", "with --resume: measure the steps whose names match this `regexp` anew")
	f.IntVar(&o.rounds, "rounds", 0, "`number` of rounds instead of three (--quick: one)")
	f.BoolVar(&o.report, "report", false, "measure nothing, write the page from the results that are there")
	f.StringVar(&o.docs, "docs", "", "`folder` for benchmarks.md and its charts (default docs for a whole run, else <dir>/docs)")
	f.StringVar(&o.binary, "binary", "", "measure this postrider `file` instead of building one")
	f.BoolVar(&o.list, "list", false, "list the steps and how long they should take")
	return cmd
}

func (o *options) validate() (err error) {
	if o.rounds < 0 || o.rounds > 20 {
		return errors.New("--rounds must be from 1 to 20")
	}
	if o.only != "" {
		if o.match, err = regexp.Compile(o.only); err != nil {
			return fmt.Errorf("--only: %w", err)
		}
	}
	if o.again != "" {
		if !o.resume {
			return errors.New("--again goes with --resume")
		}
		if o.forget, err = regexp.Compile(o.again); err != nil {
			return fmt.Errorf("--again: %w", err)
		}
	}
	if o.binary != "" {
		if o.binary, err = filepath.Abs(o.binary); err != nil {
			return err
		}
	}
	return nil
}

func (o *options) run(ctx context.Context) error {
	root, err := rig.FindRoot(".")
	if err != nil {
		return err
	}
	if o.dir == "" {
		o.dir = filepath.Join(root, "bench", ".run")
		if o.quick {
			o.dir = filepath.Join(o.dir, "quick")
		}
	}
	if o.list {
		o.printPlan(o.plan(nil))
		return nil
	}
	if o.report {
		run, err := result.Read(o.dir)
		if err != nil {
			return err
		}
		return o.write(root, run)
	}
	return o.measure(ctx, root)
}

func (o *options) plan(done func(string) bool) plan.Plan {
	return plan.Selected(plan.Options{Quick: o.quick, Rounds: o.rounds, Only: o.match, Done: done})
}

func (o *options) printPlan(p plan.Plan) {
	for _, s := range p.Steps {
		fmt.Fprintf(o.out, "%-40s %4.0f s\n", s.Name, s.Estimate)
	}
	fmt.Fprintf(o.out, "%d steps, with everything around them %.0f min\n", len(p.Steps), p.Estimate()/60)
}

func (o *options) measure(ctx context.Context, root string) error {
	r, err := rig.New(rig.Options{Root: root, Dir: o.dir})
	if err != nil {
		return err
	}
	unlock, err := r.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	store, err := run.OpenStore(o.dir, o.resume)
	if err != nil {
		return err
	}
	if o.forget != nil {
		store.Forget(o.forget.MatchString)
	}
	p := o.plan(store.Done)
	if len(p.Steps) == 0 {
		fmt.Fprintln(o.out, "nothing is left to measure")
		return o.write(root, store.Run())
	}
	fmt.Fprintf(o.out, "%d steps, about %.0f min; results in %s\n", len(p.Steps), p.Estimate()/60, filepath.Join(o.dir, result.File))
	err = run.Run(ctx, run.Options{
		Rig: r, Plan: p, Contenders: contender.All(o.binary), Store: store, Out: o.out, Quick: o.quick,
	})
	if err != nil {
		return err
	}
	if err := store.Finish(); err != nil {
		return err
	}
	return o.write(root, store.Run())
}

// write makes the page. Only a whole run's page takes the place of the one that is published.
func (o *options) write(root string, run result.Run) error {
	docs := o.docs
	if docs == "" {
		docs = filepath.Join(o.dir, "docs")
		if !run.Environment.Quick && o.only == "" && o.rounds == 0 {
			docs = filepath.Join(root, "docs")
		}
	}
	if err := report.Write(run, docs); err != nil {
		return err
	}
	fmt.Fprintln(o.out, "written:", filepath.Join(docs, "benchmarks.md"))
	return nil
}
