package main

import "github.com/twmb/franz-go/pkg/kgo"

type franz struct {
	brokers  []string
	producer *kgo.Client
}

func newFranz(brokers []string) client { return &franz{brokers: brokers} }

func (f *franz) read(topic string, seen func(record)) error {
	c, err := kgo.NewClient(
		kgo.SeedBrokers(f.brokers...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		ctx, cancel := within(idle)
		fetches := c.PollFetches(ctx)
		cancel()
		if ctx.Err() != nil && fetches.Empty() {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			got := record{key: r.Key, value: r.Value}
			for _, each := range r.Headers {
				got.headers = append(got.headers, header{each.Key, each.Value})
			}
			seen(got)
		})
	}
}

func (f *franz) open(bool) (err error) {
	f.producer, err = kgo.NewClient(kgo.SeedBrokers(f.brokers...))
	return err
}

func (f *franz) send(topic string, r record) error {
	sent := &kgo.Record{Topic: topic, Key: r.key, Value: r.value}
	for _, each := range r.headers {
		sent.Headers = append(sent.Headers, kgo.RecordHeader{Key: each.name, Value: each.value})
	}
	ctx, cancel := within(idle)
	defer cancel()
	return f.producer.ProduceSync(ctx, sent).FirstErr()
}
