// What programs do with franz-go: topics, records in a group, offsets, settings.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const count = 100

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	return value
}

func main() {
	place, topic := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := must(kgo.NewClient(kgo.SeedBrokers(place), kgo.ProducerBatchCompression(kgo.ZstdCompression())))
	defer client.Close()
	admin := kadm.NewClient(client)

	must(admin.CreateTopic(ctx, 2, 1, map[string]*string{"segment.bytes": kadm.StringPtr("1048576")}, topic))
	topics := must(admin.ListTopics(ctx, topic))
	fmt.Printf("CreateTopic, ListTopics: %d partitions\n", len(topics[topic].Partitions))
	_, refused := admin.CreateTopic(ctx, 1, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}, "x")
	fmt.Printf("CreateTopic with cleanup.policy=compact: %v\n", refused)

	for number := 0; number < count; number++ {
		record := &kgo.Record{Topic: topic, Key: []byte(fmt.Sprint(number % 7)), Value: []byte(fmt.Sprint(number))}
		must(client.ProduceSync(ctx, record).First())
	}
	fmt.Printf("ProduceSync, idempotent, zstd: sent %d\n", count)

	consumer := must(kgo.NewClient(
		kgo.SeedBrokers(place), kgo.ConsumerGroup("readers"), kgo.ConsumeTopics(topic), kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	))
	found := 0
	for found < count && ctx.Err() == nil {
		fetches := consumer.PollFetches(ctx)
		found += fetches.NumRecords()
		consumer.AllowRebalance()
	}
	if err := consumer.CommitUncommittedOffsets(ctx); err != nil {
		fmt.Println("failed:", err)
	}
	consumer.Close()
	fmt.Printf("PollFetches in a group: read %d\n", found)

	lags := must(admin.Lag(ctx, "readers"))
	fmt.Printf("Lag: %d\n", lags["readers"].Lag.Total())
	must(admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: kadm.StringPtr("60000")}}, topic))
	for _, config := range must(admin.DescribeTopicConfigs(ctx, topic))[0].Configs {
		if config.Key == "retention.ms" {
			fmt.Printf("AlterTopicConfigs, DescribeTopicConfigs: retention.ms=%s\n", *config.Value)
		}
	}
	ends := must(admin.ListEndOffsets(ctx, topic))
	must(admin.DeleteRecords(ctx, ends.Offsets()))
	left := 0
	must(admin.ListStartOffsets(ctx, topic)).Each(func(start kadm.ListedOffset) {
		end, _ := ends.Lookup(topic, start.Partition)
		left += int(end.Offset - start.Offset)
	})
	fmt.Printf("DeleteRecords: %d left\n", left)
	directories := must(admin.DescribeAllLogDirs(ctx, nil))
	fmt.Printf("DescribeAllLogDirs: of %d broker\n", len(directories))
	fmt.Printf("ListTransactions: %d\n", len(must(admin.ListTransactions(ctx, nil, nil))))
	must(admin.DeleteGroups(ctx, "readers"))
	must(admin.DeleteTopics(ctx, topic))
	fmt.Println("DeleteGroups, DeleteTopics: done")

	began := time.Now()
	transactional := must(kgo.NewClient(kgo.SeedBrokers(place), kgo.TransactionalID("t")))
	err := transactional.BeginTransaction()
	if err == nil {
		err = transactional.ProduceSync(ctx, &kgo.Record{Topic: "x", Value: []byte("x")}).FirstErr()
	}
	if errors.Is(err, kerr.TransactionalIDAuthorizationFailed) && time.Since(began) < 10*time.Second {
		fmt.Println("transaction: at once: TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
	} else {
		fmt.Println("transaction:", err)
	}
	os.Exit(0)
}
