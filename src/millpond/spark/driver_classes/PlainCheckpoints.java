package millpond;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/** Checkpoints in files of the local disk, without a process for each file, and without a checksum beside it. */
public class PlainCheckpoints extends FileSystemBasedCheckpointFileManager {
    /** Spark's has a thousand settings, and would be copied for each log of a query. */
    private static final Configuration OWN = new Configuration(false);

    static {
        OWN.setClass("fs.file.impl", Files.class, FileSystem.class);
        OWN.setBoolean("fs.file.impl.disable.cache", true);
    }

    public PlainCheckpoints(Path path, Configuration configuration) {
        super(path, OWN);
    }

    /** Without Hadoop's own library in C its local files get their permissions from a process, `chmod`, each. */
    public static class Files extends RawLocalFileSystem {
        @Override
        public void setPermission(Path path, FsPermission permission) {
        }
    }
}
