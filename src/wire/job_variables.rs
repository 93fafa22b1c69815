//! The environment variables that gpufleet reads: those that place a process in its job. All others stay on the host.

/// Names, the most important first: torchrun, Slurm, MPI, JAX.
#[cfg(all(feature = "probe", target_os = "linux"))]
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.split(' ')
}

const NAMES: &str = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK MASTER_ADDR MASTER_PORT \
    TORCHELASTIC_RUN_ID SLURM_JOB_ID SLURM_STEP_ID SLURM_PROCID SLURM_NODEID OMPI_COMM_WORLD_RANK PMI_RANK \
    JAX_COORDINATOR_ADDRESS JAX_NUM_PROCESSES JAX_PROCESS_ID CUDA_VISIBLE_DEVICES PYTHONFAULTHANDLER";

/// Beginnings of further names.
pub(crate) const PREFIXES: [&str; 2] = ["NCCL_", "TORCH_"];

/// Whether `NAME=value` is one of these variables.
#[cfg(feature = "controller")]
pub fn is_job_variable(variable: &str) -> bool {
    let Some((name, _)) = variable.split_once('=') else { return false };
    NAMES.split(' ').any(|known| known == name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_of_the_job_are_read() {
        for variable in
            ["RANK=3", "SLURM_PROCID=0", "CUDA_VISIBLE_DEVICES=0,1", "NCCL_DEBUG=INFO", "TORCH_HOME=", "RANK="]
        {
            assert!(is_job_variable(variable), "{variable}");
        }
        for variable in [
            "PATH=/bin",
            "RANKS=3",
            "MY_RANK=3",
            "SLURM_JOB_ACCOUNT=lab",
            "WANDB_API_KEY=x",
            "rank=3",
            "RANK",
            "NCCL_",
            "",
            "=x",
        ] {
            assert!(!is_job_variable(variable), "{variable}");
        }
    }
}
