"""
A real Kafka client against the broker: produce a few records, read them back.

Run it:  python examples/produce_and_consume.py [HOST:PORT]
"""

import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TOPIC = "greetings"

producer = Producer({"bootstrap.servers": ADDRESS, "enable.idempotence": True})
for language, greeting in {"en": "hello", "fr": "bonjour", "fi": "hei"}.items():
    producer.produce(TOPIC, key=language, value=greeting)
if producer.flush(10):
    sys.exit(f"no broker took the records at {ADDRESS}; start one with: make run")

consumer = Consumer({"bootstrap.servers": ADDRESS, "group.id": "example", "enable.auto.commit": False})
consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
for message in consumer.consume(3, timeout=10):
    print(message.offset(), message.key().decode(), message.value().decode())
consumer.close()
