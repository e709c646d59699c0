// Command watermill runs watermill's forwarder as a process of its own, so that its CPU and memory can be measured.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/postrider/postrider/bench/peers/watermill"
)

func main() {
	var c watermill.Config
	flag.StringVar(&c.DSN, "dsn", "", "PostgreSQL")
	flag.StringVar(&c.Table, "table", "", "the table of messages")
	brokers := flag.String("brokers", "", "host:port,…")
	flag.IntVar(&c.Batch, "batch", 1000, "rows of a SELECT")
	flag.DurationVar(&c.Interval, "interval", 100*time.Millisecond, "pause after a SELECT that found nothing")
	flag.Parse()
	c.Brokers = strings.Split(*brokers, ",")

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := watermill.Run(ctx, c); err != nil {
		log.Fatal(err)
	}
}
