// Command worker runs the one connector that the benchmark measures, for tests outside of this module: it reads Options as JSON
// from standard input, writes the properties, and becomes the Connect worker. Standalone Connect ends at SIGTERM, having stored
// what it has published.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"syscall"

	"github.com/postrider/postrider/bench/peers/debezium"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var o debezium.Options
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return fmt.Errorf("options: %w", err)
	}
	java, err := debezium.Java(ctx)
	if err != nil {
		return err
	}
	jars, err := debezium.Jars(ctx)
	if err != nil {
		return err
	}
	args, err := debezium.Write(o, jars)
	if err != nil {
		return err
	}
	return syscall.Exec(java, append([]string{java}, args...), os.Environ())
}
