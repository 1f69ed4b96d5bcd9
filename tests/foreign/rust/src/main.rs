//! Does the same with each Kafka client of Rust: see ../../README.md for its arguments.

mod krafka_client;
mod rskafka_client;

use std::env::args;
use std::error::Error;
use std::time::Duration;

/// How long a reader waits for a further record.
const IDLE: Duration = Duration::from_secs(8);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A name and its bytes; `None` is null.
type Header = (String, Option<Vec<u8>>);

/// What both clients send and read; `None` is null.
#[derive(Default)]
struct Record {
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    headers: Vec<Header>,
}

/// One Kafka client.
trait Client {
    /// Prints each record that a committed reader gets, until none came for [`IDLE`].
    async fn read(&self, topic: &str) -> Result<()>;
    /// Returns when the brokers have the record.
    async fn send(&mut self, topic: &str, record: Record) -> Result<()>;
}

fn text(data: Option<&[u8]>) -> String {
    data.map_or("null".into(), |data| {
        format!("\"{}\"", data.iter().map(|each| format!("{each:02x}")).collect::<String>())
    })
}

/// Prints a record as a line of JSON, with bytes in hexadecimal.
fn show<'a>(
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
) {
    let headers: Vec<_> = headers.map(|(name, data)| format!("[\"{name}\", {}]", text(data))).collect();
    println!("{{\"key\": {}, \"value\": {}, \"headers\": [{}]}}", text(key), text(value), headers.join(", "));
}

async fn nulls(client: &mut impl Client, topic: &str) -> Result<()> {
    for (name, value, headers) in [
        ("null value", None, vec![]),
        ("empty value", Some(vec![]), vec![]),
        ("null header", Some(b"v".to_vec()), vec![("h".into(), None)]),
        ("empty header", Some(b"v".to_vec()), vec![("h".into(), Some(vec![]))]),
    ] {
        if let Err(error) = client.send(topic, Record { key: name.into(), value, headers }).await {
            println!("{name}: {error}");
        }
    }
    Ok(())
}

async fn done(mut client: impl Client, command: &str, topic: &str, rest: &[String]) -> Result<()> {
    match command {
        "read" => client.read(topic).await?,
        "nulls" => nulls(&mut client, topic).await?,
        "send" => {
            for i in 0..rest[1].parse()? {
                let key = format!("id-{i}").into_bytes();
                client.send(topic, Record { key, value: Some(b"v".to_vec()), headers: vec![] }).await?;
            }
        }
        "timers" => {
            let ids: Vec<_> = (0..rest[3].parse::<u32>()?).map(|i| format!("{}-{i}", rest[1]).into_bytes()).collect();
            let headers: Vec<Header> = [("timer-topic", &rest[1]), ("timer-due", &rest[2])]
                .map(|(name, data)| (name.into(), Some(data.clone().into_bytes())))
                .into();
            for key in ids.clone() {
                client.send(topic, Record { key, value: Some(b"v".to_vec()), headers: headers.clone() }).await?;
            }
            for key in ids {
                client.send(topic, Record { key, ..Record::default() }).await?;
            }
        }
        _ => return Err(format!("unknown command {command}").into()),
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let given: Vec<String> = args().skip(1).collect();
    let (name, command, brokers, topic, rest) = (&*given[0], &*given[1], &*given[2], &*given[3], &given[4..]);
    let configured = rest.first().is_none_or(|mode| mode == "configured");
    match name {
        "krafka" => done(krafka_client::open(brokers).await?, command, topic, rest).await,
        "rskafka" => done(rskafka_client::open(brokers, configured).await?, command, topic, rest).await,
        _ => Err(format!("unknown client {name}").into()),
    }
}
