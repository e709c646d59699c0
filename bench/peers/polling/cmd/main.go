// Command polling runs the polling relay as a process of its own, so that its CPU and memory can be measured.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/postrider/postrider/bench/peers/polling"
)

func main() {
	var c polling.Config
	flag.StringVar(&c.DSN, "dsn", "", "PostgreSQL")
	flag.StringVar(&c.Table, "table", "", "the relay's table")
	brokers := flag.String("brokers", "", "host:port,…")
	flag.StringVar(&c.Topic, "topic", "", "where all events go")
	flag.IntVar(&c.Batch, "batch", 1000, "rows of a poll")
	flag.DurationVar(&c.Interval, "interval", 100*time.Millisecond, "pause after a poll that was not full")
	flag.DurationVar(&c.Linger, "linger", time.Millisecond, "BatchTimeout of the Writer")
	flag.BoolVar(&c.Delete, "delete", false, "delete rows instead of marking them")
	flag.Parse()
	c.Brokers = strings.Split(*brokers, ",")

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := polling.Run(ctx, c); err != nil {
		log.Fatal(err)
	}
}
