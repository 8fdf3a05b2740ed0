//! The events that an application's `tracing` subscriber receives.

mod common;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use common::{World, key, tiny, value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// An event: its fields by name, the message among them, and the span around it.
#[derive(Clone, Debug, Default)]
struct Heard {
    fields: BTreeMap<&'static str, String>,
    span: Option<&'static str>,
}

impl Heard {
    fn number(&self, field: &str) -> u64 {
        let value = self.fields.get(field);
        let value = value.unwrap_or_else(|| panic!("no {field} in {self:?}"));
        value.parse().unwrap()
    }
}

impl Visit for Heard {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<Heard>>>);

impl Listener {
    /// The only event since the last call whose message begins with this text.
    fn one(&self, message: &str) -> Heard {
        let heard = self.0.lock().unwrap();
        let mut found = heard
            .iter()
            .filter(|e| e.fields["message"].starts_with(message));
        let event = found
            .next()
            .unwrap_or_else(|| panic!("no {message:?} in {heard:#?}"));
        assert!(found.next().is_none(), "{message:?} twice in {heard:#?}");
        event.clone()
    }

    fn forget(&self) {
        self.0.lock().unwrap().clear();
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Listener {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if *event.metadata().level() > Level::INFO {
            return;
        }
        let mut heard = Heard::default();
        event.record(&mut heard);
        heard.span = context.lookup_current().map(|span| span.name());
        self.0.lock().unwrap().push(heard);
    }
}

#[test]
fn open_recovery_checkpoints_and_close_send_events_with_figures() {
    let listener = Listener::default();
    let subscriber = tracing_subscriber::registry().with(listener.clone());
    let _guard = tracing::subscriber::set_default(subscriber);

    let world = World::new(1);
    let database = world.open(&tiny());
    let opened = listener.one("opened the database");
    assert_eq!(
        (opened.number("keyspaces"), opened.number("records")),
        (1, 0)
    );
    assert_eq!(opened.span, Some("open"));
    let keyspace = database.default_keyspace();
    for i in 0..100 {
        keyspace.put(key(i), value(i, 20)).unwrap();
    }
    world.kill(database);
    drop(keyspace);
    listener.forget();

    let database = world.open(&tiny());
    assert!(listener.one("replaying the log").number("bytes") > 2000);
    let replayed = listener.one("replayed the log");
    assert_eq!(replayed.number("records"), 100);
    assert!(replayed.number("bytes") > 2000);
    assert!(replayed.fields.contains_key("duration_ms"));
    assert_eq!(listener.one("opened the database").number("records"), 100);
    listener.forget();

    database.checkpoint().unwrap();
    let checkpoint = listener.one("checkpoint: merged");
    assert_eq!(checkpoint.number("keyspaces"), 1);
    assert!(checkpoint.number("bytes") > 2000);
    database.close().unwrap();
    listener.one("closed the database");
}

#[test]
fn write_stalls_send_events_with_their_cause_at_begin_and_end() {
    let listener = Listener::default();
    let subscriber = tracing_subscriber::registry().with(listener.clone());
    let _guard = tracing::subscriber::set_default(subscriber);
    let world = World::new(2);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let stalls = |message: &str| {
        let heard = listener.0.lock().unwrap();
        let of_stalls = heard.iter().filter(|e| e.fields["message"] == message);
        of_stalls.cloned().collect::<Vec<_>>()
    };
    // In a simulation, merges run while writers wait, and seldom otherwise.
    world.sim.set_breathing(false);
    for i in 0..20_000 {
        keyspace.put(key(i), value(i, 100)).unwrap();
        if !stalls("a write stall ended").is_empty() {
            break;
        }
    }
    let began = stalls("a write stall began");
    let ended = stalls("a write stall ended");
    assert!(
        !began.is_empty() && began.len() == ended.len(),
        "{began:?} {ended:?}"
    );
    assert!(began[0].fields["cause"].len() > 5, "{began:?}");
    assert_eq!(began[0].fields["cause"], ended[0].fields["cause"]);
    let _ = ended[0].number("duration_ms");
    database.close().unwrap();
}
