// Command schedule schedules a timer and prints its id. Arguments: callback topic, key, value, delay in seconds.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 5 {
		log.Fatal("usage: schedule TOPIC KEY VALUE SECONDS")
	}
	id, err := schedule(os.Args[1], os.Args[2], os.Args[3], os.Args[4])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id)
}

func schedule(topic, key, value, delay string) (string, error) {
	seconds, err := strconv.ParseInt(delay, 10, 64)
	if err != nil {
		return "", err
	}
	// Due times are whole seconds. The present time is rounded up, so that the delay is never shorter than asked.
	dueS := (time.Now().UnixMilli()+999)/1000 + seconds

	// An acknowledged request is on all in-sync replicas (acks=all), and once (idempotence): both are franz-go's defaults.
	// StickyPartitioner ignores the key, which is the due second: the timers of one second spread over all partitions.
	client, err := kgo.NewClient(
		kgo.SeedBrokers(cmp.Or(os.Getenv("TIMERS_BROKERS"), "127.0.0.1:9092")),
		kgo.RecordPartitioner(kgo.StickyPartitioner()),
	)
	if err != nil {
		return "", err
	}
	defer client.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	request, err := client.ProduceSync(ctx, &kgo.Record{
		Topic: cmp.Or(os.Getenv("TIMERS_REQUEST_TOPIC"), "timer-request"),
		Key:   strconv.AppendInt(nil, dueS, 10),
		Value: []byte(value),
		Headers: []kgo.RecordHeader{
			{Key: "timer-topic", Value: []byte(topic)},
			{Key: "timer-key", Value: []byte(key)},
			{Key: "sent-by", Value: []byte("go")}, // the callback has the other headers of the request
		},
	}).First()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s/%d/%d", request.Topic, request.Partition, request.Offset), nil
}
