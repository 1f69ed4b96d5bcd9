package main

import (
	"time"

	"github.com/segmentio/kafka-go"
)

type segment struct {
	brokers  []string
	producer *kafka.Writer
}

func newSegment(brokers []string) client { return &segment{brokers: brokers} }

func (s *segment) read(topic string, seen func(record)) error {
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers:        s.brokers,
		Topic:          topic,
		StartOffset:    kafka.FirstOffset,
		IsolationLevel: kafka.ReadCommitted,
		MaxWait:        500 * time.Millisecond,
	})
	defer r.Close()
	for {
		ctx, cancel := within(idle)
		m, err := r.ReadMessage(ctx)
		cancel()
		if isOver(err) {
			return nil
		}
		if err != nil {
			return err
		}
		got := record{key: m.Key, value: m.Value}
		for _, each := range m.Headers {
			got.headers = append(got.headers, header{each.Key, each.Value})
		}
		seen(got)
	}
}

func (s *segment) open(configured bool) error {
	s.producer = &kafka.Writer{Addr: kafka.TCP(s.brokers...), BatchTimeout: time.Millisecond}
	if configured {
		s.producer.Balancer = kafka.Murmur2Balancer{}
		s.producer.RequiredAcks = kafka.RequireAll
	}
	return nil
}

func (s *segment) send(topic string, r record) error {
	m := kafka.Message{Topic: topic, Key: r.key, Value: r.value}
	for _, each := range r.headers {
		m.Headers = append(m.Headers, kafka.Header{Key: each.name, Value: each.value})
	}
	ctx, cancel := within(idle)
	defer cancel()
	return s.producer.WriteMessages(ctx, m)
}
