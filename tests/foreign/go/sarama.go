package main

import (
	"time"

	"github.com/IBM/sarama"
)

type ibm struct {
	brokers  []string
	producer sarama.SyncProducer
}

func newSarama(brokers []string) client { return &ibm{brokers: brokers} }

func (s *ibm) read(topic string, seen func(record)) error {
	config := sarama.NewConfig()
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	c, err := sarama.NewConsumer(s.brokers, config)
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := c.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	defer p.Close()
	for {
		select {
		case m := <-p.Messages():
			got := record{key: m.Key, value: m.Value}
			for _, each := range m.Headers {
				got.headers = append(got.headers, header{string(each.Key), each.Value})
			}
			seen(got)
		case <-time.After(idle):
			return nil
		}
	}
}

func (s *ibm) open(configured bool) (err error) {
	config := sarama.NewConfig()
	config.Producer.Return.Successes = true
	if configured {
		config.Producer.Partitioner = sarama.NewMurmur2Partitioner
		config.Producer.RequiredAcks = sarama.WaitForAll
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	s.producer, err = sarama.NewSyncProducer(s.brokers, config)
	return err
}

func (s *ibm) send(topic string, r record) error {
	m := &sarama.ProducerMessage{Topic: topic, Key: sarama.ByteEncoder(r.key)}
	if r.value != nil { // ByteEncoder(nil) is null, too
		m.Value = sarama.ByteEncoder(r.value)
	}
	for _, each := range r.headers {
		m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(each.name), Value: each.value})
	}
	_, _, err := s.producer.SendMessage(m)
	return err
}
