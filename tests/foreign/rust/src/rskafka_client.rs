//! rskafka. It has no partitioner and no groups: a program reads each partition, and says where a record goes.

use crate::{Client, Record, Result, show};
use krafka::producer::murmur2;
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client as Rskafka, ClientBuilder};

pub struct Rs {
    client: Rskafka,
    configured: bool,
    partitions: Vec<PartitionClient>,
}

pub async fn open(brokers: &str, configured: bool) -> Result<Rs> {
    let brokers = brokers.split(',').map(String::from).collect();
    Ok(Rs { client: ClientBuilder::new(brokers).build().await?, configured, partitions: vec![] })
}

impl Rs {
    async fn partitions(&self, topic: &str) -> Result<Vec<PartitionClient>> {
        let topics = self.client.list_topics().await?;
        let found = topics.iter().find(|each| each.name == topic).ok_or("no such topic")?;
        let mut partitions = vec![];
        for each in &found.partitions {
            partitions.push(self.client.partition_client(topic, *each, UnknownTopicHandling::Retry).await?);
        }
        Ok(partitions)
    }
}

impl Client for Rs {
    async fn read(&self, topic: &str) -> Result<()> {
        for partition in self.partitions(topic).await? {
            let mut offset = partition.get_offset(OffsetAt::Earliest).await?;
            while offset < partition.get_offset(OffsetAt::Latest).await? {
                let records = match partition.fetch_records(offset, 1..1_000_000, 500).await {
                    Ok((records, _)) => records,
                    Err(error) => {
                        let said = error.to_string();
                        let is_marker = said.contains("Unknown control batch record version");
                        println!("{{\"error\": {:?}}}", if is_marker { "an error at the first marker" } else { &said });
                        return Ok(());
                    }
                };
                let Some(last) = records.last() else { break };
                offset = last.offset + 1;
                for each in &records {
                    let headers = each.record.headers.iter().map(|(name, data)| (name.as_str(), Some(&data[..])));
                    show(each.record.key.as_deref(), each.record.value.as_deref(), headers);
                }
            }
        }
        Ok(())
    }

    async fn send(&mut self, topic: &str, record: Record) -> Result<()> {
        if self.partitions.is_empty() {
            self.partitions = self.partitions(topic).await?;
        }
        let headers: Option<_> = record.headers.into_iter().map(|(name, data)| Some((name, data?))).collect();
        let place = if self.configured { (murmur2(&record.key) & 0x7fff_ffff) as usize % self.partitions.len() } else { 0 };
        let sent = rskafka::record::Record {
            key: Some(record.key),
            value: record.value,
            headers: headers.ok_or("impossible")?,
            timestamp: chrono::Utc::now(),
        };
        self.partitions[place].produce(vec![sent], Compression::NoCompression).await?;
        Ok(())
    }
}
