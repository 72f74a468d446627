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

	must(admin.CreateTopic(ctx, 2, -1, map[string]*string{"segment.bytes": kadm.StringPtr("1048576")}, topic))
	topics := must(admin.ListTopics(ctx, topic))
	fmt.Printf("CreateTopic, ListTopics: %d partitions\n", len(topics[topic].Partitions))
	_, refused := admin.CreateTopic(ctx, 1, -1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}, "compacted")
	if refused == nil {
		refused = errors.New("created")
	}
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
	fmt.Printf("DescribeAllLogDirs: of %d\n", len(directories))
	fmt.Printf("ListTransactions: %d\n", len(must(admin.ListTransactions(ctx, nil, []string{"Ongoing"}))))
	must(admin.DeleteGroups(ctx, "readers"))
	must(admin.DeleteTopics(ctx, topic))
	fmt.Println("DeleteGroups, DeleteTopics: done")

	transact(ctx, place)
	limited(ctx, place)
	os.Exit(0)
}

func transact(ctx context.Context, place string) {
	began := time.Now()
	client := must(kgo.NewClient(kgo.SeedBrokers(place), kgo.TransactionalID("t"), kgo.DefaultProduceTopic("x"), kgo.AllowAutoTopicCreation()))
	for _, commit := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
		err := client.BeginTransaction()
		if err == nil {
			err = client.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint(bool(commit)))).FirstErr()
		}
		if errors.Is(err, kerr.TransactionalIDAuthorizationFailed) && time.Since(began) < 30*time.Second {
			fmt.Println("transaction: at once: TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
			return
		} else if err != nil {
			fmt.Println("transaction:", err)
			return
		}
		must(0, client.EndTransaction(ctx, commit))
	}
	reader := must(kgo.NewClient(
		kgo.SeedBrokers(place), kgo.ConsumeTopics("x"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	))
	fmt.Printf("transaction: committed %s, and aborted the other\n", reader.PollFetches(ctx).Records()[0].Value)
}

type delays struct{ count int }

func (heard *delays) OnBrokerThrottle(kgo.BrokerMetadata, time.Duration, bool) { heard.count++ }

func limited(ctx context.Context, place string) {
	heard := &delays{}
	client := must(kgo.NewClient(
		kgo.SeedBrokers(place), kgo.ClientID("limited"), kgo.WithHooks(heard), kgo.DefaultProduceTopic("limited"),
		kgo.AllowAutoTopicCreation(), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	))
	began := time.Now()
	for _, size := range []int{60_000, 1} {
		must(client.ProduceSync(ctx, &kgo.Record{Value: make([]byte, size)}).First())
	}
	fmt.Printf("three times as much as a limit allows in a second: held back: %v, told so: %v\n", time.Since(began) > time.Second, heard.count > 0)
}
