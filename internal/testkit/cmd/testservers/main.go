// Command testservers runs a command with one PostgreSQL and one Kafka that all
// its test binaries share, and says first what it started:
//
//	testservers run go test -race ./...
//	testservers serve postgres kafka     (until its standard input ends)
//
// run passes the command's exit code through.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/postrider/postrider/internal/testkit/servers"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "testservers:", err)
	}
	os.Exit(code)
}

const usage = "usage: testservers run COMMAND [ARGUMENT…] | testservers serve [postgres] [kafka] (until standard input ends)"

func run(args []string) (int, error) {
	if len(args) < 2 {
		return 2, errors.New(usage)
	}
	choice, err := servers.ParseChoice(os.Getenv(servers.ChoiceEnv))
	if err != nil {
		return 2, err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	requireReal := os.Getenv(servers.RequireRealEnv) == "1"
	switch args[0] {
	case "run":
		return runCommand(choice, requireReal, args[1:], signals)
	case "serve":
		return serve(choice, requireReal, args[1:], signals)
	}
	return 2, errors.New(usage)
}

func start(choice servers.Choice, requireReal bool, kinds ...servers.Kind) (*servers.Servers, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return servers.Start(ctx, choice, requireReal, kinds...)
}

// runCommand hands signals on to the command and stops the servers after it.
func runCommand(choice servers.Choice, requireReal bool, args []string, signals <-chan os.Signal) (code int, err error) {
	began := time.Now()
	s, err := start(choice, requireReal, servers.KindPostgres, servers.KindKafka)
	if err != nil {
		return 1, err
	}
	defer func() {
		if stopErr := s.Stop(); stopErr != nil {
			err = errors.Join(err, stopErr)
			code = max(code, 1)
		}
	}()
	for _, line := range s.About() {
		fmt.Println("test servers:", line)
	}
	fmt.Printf("test servers: ready after %.1f s\n", time.Since(began).Seconds())

	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), s.Env()...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case sig := <-signals:
			_ = cmd.Process.Signal(sig)
		case err := <-ended:
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.ExitCode() > 0 {
				return exit.ExitCode(), nil
			}
			if err != nil {
				return 1, err
			}
			return 0, nil
		}
	}
}

// serve prints the environment for test binaries, then "ready", and runs until
// standard input ends: that is when the test binary that started it ends.
func serve(choice servers.Choice, requireReal bool, args []string, signals <-chan os.Signal) (int, error) {
	var kinds []servers.Kind
	for _, a := range args {
		kind := servers.Kind(a)
		if kind != servers.KindPostgres && kind != servers.KindKafka {
			return 2, errors.New(usage)
		}
		kinds = append(kinds, kind)
	}
	s, err := start(choice, requireReal, kinds...)
	if err != nil {
		return 1, err
	}
	for _, line := range s.About() {
		fmt.Println("#", line)
	}
	for _, line := range s.Env() {
		fmt.Println(line)
	}
	fmt.Println("ready")
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	select {
	case <-ended:
	case <-signals:
	}
	if err := s.Stop(); err != nil {
		return 1, err
	}
	return 0, nil
}
