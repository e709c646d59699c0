// Command postrider publishes a PostgreSQL outbox table to Kafka.
//
// Data goes to standard output, diagnostics and logs to standard error, and the
// exit code says who has to act (see exitCodes).
package main

import "os"

func main() {
	os.Exit(execute(os.Args[1:], newApp(os.Stdout, os.Stderr)))
}
