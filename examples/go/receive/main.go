// Command receive prints each callback of a topic once. Arguments: callback topic, consumer group. Ctrl-C ends it.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: receive TOPIC GROUP")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := receive(ctx, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func receive(ctx context.Context, topic, group string) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(cmp.Or(os.Getenv("TIMERS_BROKERS"), "127.0.0.1:9092")),
		kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// Without it, callbacks arrive that a worker has taken back: it fires them once more.
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), // no other receiver gets a partition before its offsets are committed
	)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			traced(ctx, r, group, func(context.Context) { handle(r) })
		})
		// After the work: a receiver that is killed before this gets the same callbacks again.
		if err := client.CommitUncommittedOffsets(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		client.AllowRebalance()
	}
}

// handle does the work of one callback.
func handle(r *kgo.Record) {
	name := timer(r)
	if name == "" {
		return // no callback: another program has written it
	}
	// Keep the name in the transaction of your own work, and leave out a callback whose name is there already.
	fmt.Printf("%s %s %s\n", name, r.Key, r.Value)
}

// timer names what has fired: it is the same each time a callback is read. The id of a timer may be used again.
func timer(r *kgo.Record) string {
	named := map[string]string{}
	for _, each := range r.Headers {
		named[each.Key] = string(each.Value)
	}
	return cmp.Or(named["timer-source"], named["timer-id"])
}
