//! The workspace of a run: a private database or file, created for the run and removed after it. Data of the user is
//! not changed.

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

/// A private database and a folder.
pub struct Workspace {
    backend: Backend,
    /// The folder of the secrets key and, on SQLite, of the database.
    folder: Folder,
}

/// The database of a workspace.
pub enum Backend {
    /// A database on the given server.
    Postgres(postgres::PostgresWorkspace),
    /// A file in the workspace's folder.
    Sqlite(sqlite::SqliteFile),
}

impl Workspace {
    /// Creates a workspace on the server that the settings name, or next to the SQLite file.
    pub async fn make(settings: &Settings) -> Result<Self, Failure> {
        match Address::parse(&settings.database.url)? {
            Address::Postgres(url) => {
                let postgres = postgres::PostgresWorkspace::make(&url).await?;
                let folder = Folder::make_in(&std::env::temp_dir());
                // When the folder cannot be created, the database must be removed again.
                let folder = match folder {
                    Ok(folder) => folder,
                    Err(failure) => return postgres.remove().await.and(Err(failure)),
                };
                Ok(Self { backend: Backend::Postgres(postgres), folder })
            }
            Address::Sqlite(given) => {
                // The file is on the same disk as the given one. The path is absolute because child processes have
                // other working directories.
                let given = std::path::absolute(given)?;
                let beside = given.parent().unwrap_or(&given);
                if !beside.is_dir() {
                    return Err(Failure::new(
                        Exit::Usage,
                        format!(
                            "the folder {} of the SQLite file does not exist; create it, or give another \
                             --database-url",
                            beside.display()
                        ),
                    ));
                }
                let folder = Folder::make_in(beside)?;
                Ok(Self { backend: Backend::Sqlite(sqlite::SqliteFile::in_folder(folder.path())), folder })
            }
        }
    }

    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Empties the database and applies the schema, so that no measurement is influenced by an earlier one.
    pub async fn fresh(&self) -> Result<Store, Failure> {
        match &self.backend {
            Backend::Postgres(postgres) => postgres.clear().await?,
            Backend::Sqlite(file) => file.next()?,
        }
        let store = self.store().await?;
        store.db().migrate().await?;
        Ok(store)
    }

    /// Opens the store with connections of its own.
    pub async fn store(&self) -> Result<Store, Failure> {
        Ok(Store::open(&self.url()).await?)
    }

    /// The URL of the database, for child processes.
    pub fn url(&self) -> String {
        match &self.backend {
            Backend::Postgres(postgres) => postgres.url().to_owned(),
            Backend::Sqlite(file) => format!("sqlite:{}", file.path().display()),
        }
    }

    /// The PostgreSQL database. An error on SQLite.
    pub fn postgres(&self) -> Result<&postgres::PostgresWorkspace, Failure> {
        match &self.backend {
            Backend::Postgres(postgres) => Ok(postgres),
            Backend::Sqlite(_) => Err(Failure::new(Exit::Usage, "this suite needs PostgreSQL")),
        }
    }

    /// A connection to PostgreSQL outside any pool.
    pub async fn client(&self) -> Result<Client, Failure> {
        self.postgres()?.client().await
    }

    /// Removes dead rows, updates statistics and writes dirty pages, so that no measurement pays for an earlier one.
    /// Called before every timed part of either side.
    pub async fn quiesce(&self) -> Result<(), Failure> {
        match &self.backend {
            Backend::Postgres(postgres) => postgres.quiesce().await,
            Backend::Sqlite(file) => Ok(crate::bare::sqlite::checkpoint(&file.path())?),
        }
    }

    /// The version and the settings that matter for speed.
    pub async fn describe(&self) -> Result<String, Failure> {
        match &self.backend {
            Backend::Postgres(postgres) => postgres.describe().await,
            Backend::Sqlite(_) => {
                let beside = self.folder().parent().unwrap_or(self.folder());
                Ok(format!("SQLite {} (WAL, synchronous FULL), in {}", rusqlite::version(), beside.display()))
            }
        }
    }

    /// The source of the key that encrypts the providers' secrets of this run.
    pub fn keys(&self) -> KeySource {
        KeySource::File(self.key_file())
    }

    /// The folder of this run. It holds no other files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn key_file(&self) -> PathBuf {
        self.folder.path().join("secret.key")
    }

    /// Removes the database and the folder.
    pub async fn remove(&self) -> Result<(), Failure> {
        let folder = self.folder.remove();
        match &self.backend {
            Backend::Postgres(postgres) => postgres.remove().await.and(folder),
            Backend::Sqlite(_) => folder,
        }
    }
}
