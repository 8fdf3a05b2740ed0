//! Bytes that an engine writes to its data files, by the names of its files.
//!
//! The kernel reports every file that is closed after writing (inotify). The file's length counts
//! if it has a data file's name. That fits engines that write a data file once and keep it for
//! longer than a report takes. Where a report was lost or a file was gone, there is no figure.
//! A data file that is still being written counts when it is closed.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use terrapin_base::{Error, Result};

/// Bytes of reports that one call reads.
const REPORTS_BYTES: usize = 16 << 10;

/// Whether a file of an engine holds data.
pub type IsDataFile = fn(&Path) -> bool;

/// The data files of a directory and its subdirectories.
pub struct Files {
    inotify: OwnedFd,
    /// Each directory with its number in reports.
    directories: Vec<(i32, PathBuf)>,
    is_data_file: IsDataFile,
    /// None after a lost report.
    bytes: Mutex<Option<u64>>,
}

impl Files {
    /// Counts from now on, in a thread that lives as long as the process. Directories that appear
    /// later are left out.
    pub fn watch(directory: &Path, is_data_file: IsDataFile) -> Result<Arc<Self>> {
        let failed = |e| {
            Error::io("cannot watch the engine's files", e).with("directory", directory.display())
        };
        let flags = CreateFlags::NONBLOCK | CreateFlags::CLOEXEC;
        let mut files = Files {
            inotify: inotify::init(flags).map_err(|e| failed(e.into()))?,
            directories: Vec::new(),
            is_data_file,
            bytes: Mutex::new(Some(0)),
        };
        files.add(directory.to_owned()).map_err(failed)?;
        let files = Arc::new(files);
        let follower = files.clone();
        std::thread::spawn(move || {
            while poll(&mut [PollFd::new(&follower.inotify, PollFlags::IN)], None).is_ok()
                && follower.bytes().is_some()
            {}
        });
        Ok(files)
    }

    fn add(&mut self, directory: PathBuf) -> std::io::Result<()> {
        let number = inotify::add_watch(&self.inotify, &directory, WatchFlags::CLOSE_WRITE)?;
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() {
                self.add(path)?;
            }
        }
        self.directories.push((number, directory));
        Ok(())
    }

    /// Bytes of the data files that were written so far; none after a lost report.
    pub fn bytes(&self) -> Option<u64> {
        let mut bytes = self.bytes.lock().ok()?;
        if let Some(known) = *bytes {
            *bytes = self.reported_bytes().map(|more| known + more);
        }
        *bytes
    }

    /// Reads the reports that are there.
    fn reported_bytes(&self) -> Option<u64> {
        let mut buffer = [MaybeUninit::uninit(); REPORTS_BYTES];
        let mut reports = Reader::new(&self.inotify, &mut buffer);
        let mut bytes = 0;
        loop {
            let report = match reports.next() {
                Ok(report) => report,
                Err(Errno::AGAIN) => return Some(bytes),
                Err(Errno::INTR) => continue,
                Err(_) => return None,
            };
            if report.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                return None;
            }
            let directory = self.directories.iter().find(|d| d.0 == report.wd());
            let name = report.file_name().and_then(|name| name.to_str().ok());
            if let (Some((_, directory)), Some(name)) = (directory, name) {
                let path = directory.join(name);
                if (self.is_data_file)(&path) {
                    bytes += fs::metadata(&path).ok()?.len();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_files_count_once_with_their_length_and_others_do_not() {
        let name = format!("compare-files-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(directory.join("below")).unwrap();
        let is_data_file: IsDataFile = |path| path.extension().is_some_and(|e| e == "sst");
        let files = Files::watch(&directory, is_data_file).unwrap();
        assert_eq!(files.bytes(), Some(0));
        fs::write(directory.join("1.sst"), [0; 100]).unwrap();
        fs::write(directory.join("2.log"), [0; 1000]).unwrap();
        fs::write(directory.join("below/3.sst"), [0; 10]).unwrap();
        assert_eq!(files.bytes(), Some(110));
        fs::read(directory.join("1.sst")).unwrap();
        assert_eq!(files.bytes(), Some(110));
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(files.bytes(), Some(110));
    }
}
