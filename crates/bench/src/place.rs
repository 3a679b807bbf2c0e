//! Where it is measured: a database or a file of its own, made for the run and gone after it. Nothing of the user's is touched.

mod folder;
pub mod postgres;
pub mod sqlite;

use std::path::{Path, PathBuf};

use postcommit_channel::secret::KeySource;
use postcommit_engine::db::Address;
use postcommit_engine::store::Store;
use postcommit_server::output::Exit;
use postcommit_server::settings::Settings;
use tokio_postgres::Client;

use crate::failure::Failure;
use folder::Folder;

/// Where it is measured.
pub struct Place {
    spot: Spot,
    /// For the secrets' key and, on SQLite, the database.
    folder: Folder,
}

/// On which database.
pub enum Spot {
    /// A database on the given server.
    Postgres(postgres::Ground),
    /// A file in our folder.
    Sqlite(sqlite::File),
}

impl Place {
    /// Makes it, on the server or beside the file that the settings name.
    pub async fn make(settings: &Settings) -> Result<Self, Failure> {
        match Address::parse(&settings.database.url)? {
            Address::Postgres(url) => {
                let ground = postgres::Ground::make(&url).await?;
                let folder = Folder::make_in(&std::env::temp_dir());
                // Somebody has to take the database away again.
                let folder = match folder {
                    Ok(folder) => folder,
                    Err(failure) => return ground.remove().await.and(Err(failure)),
                };
                Ok(Self { spot: Spot::Postgres(ground), folder })
            }
            Address::Sqlite(given) => {
                // On the same disk as the file it speaks for. Absolute: other processes work in other folders.
                let given = std::path::absolute(given)?;
                let beside = given.parent().unwrap_or(&given);
                if !beside.is_dir() {
                    return Err(Failure::new(Exit::Usage, format!("there is no folder {} to measure in", beside.display())));
                }
                let folder = Folder::make_in(beside)?;
                Ok(Self { spot: Spot::Sqlite(sqlite::File::in_folder(folder.path())), folder })
            }
        }
    }

    pub fn spot(&self) -> &Spot {
        &self.spot
    }

    /// An empty database with our schema. What was there before is gone: nobody pays for what another left.
    pub async fn fresh(&self) -> Result<Store, Failure> {
        match &self.spot {
            Spot::Postgres(ground) => ground.clear().await?,
            Spot::Sqlite(file) => file.next()?,
        }
        let store = self.store().await?;
        store.db().migrate().await?;
        Ok(store)
    }

    /// The store as it is, by connections of its own.
    pub async fn store(&self) -> Result<Store, Failure> {
        Ok(Store::open(&self.url()).await?)
    }

    /// For other processes.
    pub fn url(&self) -> String {
        match &self.spot {
            Spot::Postgres(ground) => ground.url().to_owned(),
            Spot::Sqlite(file) => format!("sqlite:{}", file.path().display()),
        }
    }

    /// PostgreSQL, for suites that need it.
    pub fn postgres(&self) -> Result<&postgres::Ground, Failure> {
        match &self.spot {
            Spot::Postgres(ground) => Ok(ground),
            Spot::Sqlite(_) => Err(Failure::new(Exit::Usage, "this suite needs PostgreSQL")),
        }
    }

    /// A connection to PostgreSQL outside any pool.
    pub async fn client(&self) -> Result<Client, Failure> {
        self.postgres()?.client().await
    }

    /// Settles what earlier parts left to be done later: dead rows, statistics, dirty pages. Before each timed part, whoever's it is.
    pub async fn settle(&self) -> Result<(), Failure> {
        match &self.spot {
            Spot::Postgres(ground) => ground.settle().await,
            Spot::Sqlite(file) => Ok(crate::bare::sqlite::checkpoint(&file.path())?),
        }
    }

    /// Version and the settings that matter.
    pub async fn describe(&self) -> Result<String, Failure> {
        match &self.spot {
            Spot::Postgres(ground) => ground.describe().await,
            Spot::Sqlite(_) => {
                let beside = self.folder().parent().unwrap_or(self.folder());
                Ok(format!("SQLite {} (WAL, synchronous FULL), in {}", rusqlite::version(), beside.display()))
            }
        }
    }

    /// Where the key is that seals the providers' secrets of this run.
    pub fn keys(&self) -> KeySource {
        KeySource::File(self.key_file())
    }

    /// Empty but for what this run put there.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn key_file(&self) -> PathBuf {
        self.folder.path().join("secret.key")
    }

    /// Takes everything away again.
    pub async fn remove(&self) -> Result<(), Failure> {
        let folder = self.folder.remove();
        match &self.spot {
            Spot::Postgres(ground) => ground.remove().await.and(folder),
            Spot::Sqlite(_) => folder,
        }
    }
}
