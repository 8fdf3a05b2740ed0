//! The data that all threads share: [`core`], [`state`], views, health. This folder decides
//! nothing.

pub mod backups;
pub mod clock;
pub mod compactions;
pub mod core;
pub mod events;
pub mod gate;
pub mod health;
pub mod id_map;
pub mod ingests;
pub mod large;
pub mod locations;
pub mod owner;
pub mod readers;
pub mod relay;
pub mod running_merge;
pub mod schedule;
pub mod state;
pub mod structures;
pub mod view;
pub mod views;
pub mod written;
