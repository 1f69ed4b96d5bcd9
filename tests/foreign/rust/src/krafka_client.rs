//! krafka.

use crate::{Client, IDLE, Record, Result, show};
use krafka::consumer::{AutoOffsetReset, IsolationLevel};
use krafka::producer::Producer;
use krafka::Kafka;

pub struct Krafka {
    kafka: Kafka,
    producer: Producer,
}

pub async fn open(brokers: &str) -> Result<Krafka> {
    let kafka = Kafka::builder(brokers).connect().await?;
    let producer = kafka.producer().build().await?;
    Ok(Krafka { kafka, producer })
}

impl Client for Krafka {
    async fn read(&self, topic: &str) -> Result<()> {
        let consumer = self
            .kafka
            .consumer(format!("foreign-{}", std::process::id()))
            .auto_offset_reset(AutoOffsetReset::Earliest)
            .isolation_level(IsolationLevel::ReadCommitted)
            .build()
            .await?;
        consumer.subscribe([topic]).await?;
        loop {
            let records = consumer.poll(IDLE).await?;
            if records.is_empty() {
                break;
            }
            for each in &records {
                let headers = each.headers.iter().map(|(name, data)| (name.as_str(), data.as_deref()));
                show(each.key.as_deref(), each.value.as_deref(), headers);
            }
        }
        consumer.close().await?;
        Ok(())
    }

    async fn send(&mut self, topic: &str, record: Record) -> Result<()> {
        let mut sent = krafka::Record::new(topic, record.value.clone().unwrap_or_default()).key(record.key);
        if record.value.is_none() {
            sent = sent.without_value();
        }
        for (name, data) in record.headers {
            sent = match data {
                Some(data) => sent.header(name, data),
                None => sent.null_header(name),
            };
        }
        let _ = self.producer.send(sent).await?;
        Ok(())
    }
}
