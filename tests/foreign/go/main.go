// Command foreign does the same with each Kafka client of Go: see ../README.md for its arguments.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// idle is how long a reader waits for a further record.
const idle = 8 * time.Second

// header is a header of a record; a nil value is null.
type header struct {
	name  string
	value []byte
}

// record is what all clients send and read; a nil value is null.
type record struct {
	key, value []byte
	headers    []header
}

// client is one Kafka client.
type client interface {
	// read calls seen for each record that a committed reader gets, until none came for idle.
	read(topic string, seen func(record)) error
	// open makes a producer; configured says whether it has the options that timers need.
	open(configured bool) error
	// send waits until the brokers have the record.
	send(topic string, r record) error
}

var clients = map[string]func(brokers []string) client{
	"franz-go": newFranz,
	"sarama":   newSarama,
	"kafka-go": newSegment,
}

func text(data []byte) *string {
	if data == nil {
		return nil
	}
	s := hex.EncodeToString(data)
	return &s
}

func main() {
	name, command, brokers, topic := os.Args[1], os.Args[2], strings.Split(os.Args[3], ","), os.Args[4]
	c := clients[name](brokers)
	var err error
	switch command {
	case "read":
		err = read(c, topic)
	case "send":
		err = send(c, topic, os.Args[5], os.Args[6])
	case "nulls":
		err = nulls(c, topic)
	case "timers":
		err = timers(c, topic, os.Args[5], os.Args[6], os.Args[7], os.Args[8])
	default:
		err = fmt.Errorf("unknown command %q", command)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// read prints each record as a line of JSON, with bytes in hexadecimal.
func read(c client, topic string) error {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	lines := json.NewEncoder(out)
	return c.read(topic, func(r record) {
		headers := make([][2]*string, 0)
		for _, each := range r.headers {
			n := each.name
			headers = append(headers, [2]*string{&n, text(each.value)})
		}
		lines.Encode(map[string]any{"key": text(r.key), "value": text(r.value), "headers": headers})
	})
}

func send(c client, topic, mode, count string) error {
	if err := c.open(mode == "configured"); err != nil {
		return err
	}
	n, _ := strconv.Atoi(count)
	for i := 0; i < n; i++ {
		if err := c.send(topic, record{key: []byte(fmt.Sprintf("id-%d", i)), value: []byte("v")}); err != nil {
			return err
		}
	}
	return nil
}

// nulls sends null and empty values and headers, and prints the errors.
func nulls(c client, topic string) error {
	if err := c.open(true); err != nil {
		return err
	}
	for _, r := range []record{
		{key: []byte("null value")},
		{key: []byte("empty value"), value: []byte{}},
		{key: []byte("null header"), value: []byte("v"), headers: []header{{"h", nil}}},
		{key: []byte("empty header"), value: []byte("v"), headers: []header{{"h", []byte{}}}},
	} {
		if err := c.send(topic, r); err != nil {
			fmt.Printf("%s: error %v\n", r.key, err)
		}
	}
	return nil
}

// timers sets timers with an id, and cancels each.
func timers(c client, topic, mode, target, due, count string) error {
	if err := c.open(mode == "configured"); err != nil {
		return err
	}
	n, _ := strconv.Atoi(count)
	headers := []header{{"timer-topic", []byte(target)}, {"timer-due", []byte(due)}}
	for i := 0; i < n; i++ {
		if err := c.send(topic, record{[]byte(fmt.Sprintf("%s-%d", target, i)), []byte("v"), headers}); err != nil {
			return err
		}
	}
	for i := 0; i < n; i++ {
		if err := c.send(topic, record{key: []byte(fmt.Sprintf("%s-%d", target, i))}); err != nil {
			return err
		}
	}
	return nil
}

// within is a context of d, and says whether an error is its end.
func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

func isOver(err error) bool { return errors.Is(err, context.DeadlineExceeded) }
