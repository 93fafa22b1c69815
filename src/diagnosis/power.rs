//! Power at full utilisation: the best sign of a hang that there is.

use crate::wire::{GpuInfo, GpuReading};

/// How far above its context-idle power, as a share of what lies between that and the limit, a GPU may draw and still be
/// called spinning. Fitted to reported hangs: H100 104 to 152 of 700 W, V100 44 of 250 W, A100-PCIe 69 of 300 W
/// (NVIDIA-NeMo/Speech#9291, NVIDIA/nccl#1550, #199, #968). Healthy work on the same H100 draws 500 to 690 W.
pub const SPIN_SHARE: f32 = 0.12;

/// Context-idle power as a share of the limit, while it has not been learned for this GPU.
pub const UNLEARNED_IDLE_SHARE: f32 = 0.20;

/// A GPU that says it is busy for less than this share of the time is not judged by its power.
const BUSY_PERCENT: u8 = 90;

/// `Pspin = I + 0.12 (L - I)` in watts: below it a GPU that says it is busy is doing next to nothing. `limit_watts` is
/// the enforced limit L; `learned` the context-idle power I in watts of this GPU, where it is known.
pub fn spin_power_watts(limit_watts: f32, learned: Option<f32>) -> f32 {
    let idle = learned.unwrap_or(UNLEARNED_IDLE_SHARE * limit_watts).min(limit_watts);
    idle + SPIN_SHARE * (limit_watts - idle)
}

/// Whether a GPU reads busy and draws less than [`spin_power_watts`]. An observation and no verdict: tiny kernels that
/// are bound by their launches look the same. False where a reading that it needs is missing.
pub fn is_low_power(reading: &GpuReading, info: &GpuInfo, learned: Option<f32>) -> bool {
    let power = reading.power_mean_watts.or(reading.power_watts);
    let limit = reading.power_limit_watts.or(info.power_limit_watts);
    match (reading.utilization_percent, power, limit) {
        (Some(utilization), Some(power), Some(limit)) => {
            utilization >= BUSY_PERCENT && power < spin_power_watts(limit, learned)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_low(utilization_percent: u8, power_watts: f32, limit_watts: f32) -> bool {
        let reading = GpuReading {
            utilization_percent: Some(utilization_percent),
            power_watts: Some(power_watts),
            ..GpuReading::default()
        };
        let info = GpuInfo { power_limit_watts: Some(limit_watts), ..GpuInfo::default() };
        is_low_power(&reading, &info, None)
    }

    #[test]
    fn reported_hangs_are_low_and_healthy_work_is_not() {
        assert!(is_low(100, 104.0, 700.0), "H100");
        assert!(is_low(100, 152.0, 700.0), "H100, the highest of the reports");
        assert!(is_low(100, 44.0, 250.0), "V100-PCIe");
        assert!(is_low(100, 69.0, 300.0), "A100-PCIe");
        assert!(!is_low(100, 560.0, 700.0), "H100 at work");
        assert!(!is_low(95, 250.0, 700.0), "FSDP, bound by communication");
    }

    #[test]
    fn a_gpu_that_is_not_busy_may_draw_little() {
        assert!(!is_low(89, 104.0, 700.0));
        assert!(!is_low(0, 70.0, 700.0));
    }

    #[test]
    fn the_threshold_is_the_sheets_formula() {
        assert!((spin_power_watts(700.0, None) - 207.2).abs() < 0.01);
        assert!((spin_power_watts(700.0, Some(122.0)) - 191.36).abs() < 0.01);
        assert!((spin_power_watts(300.0, Some(900.0)) - 300.0).abs() < 0.01, "learned above a limit that was lowered");
    }

    #[test]
    fn energy_over_time_goes_before_the_sensor_and_the_present_limit_before_the_first() {
        let info = GpuInfo { power_limit_watts: Some(700.0), ..GpuInfo::default() };
        let reading = GpuReading {
            utilization_percent: Some(100),
            power_watts: Some(104.0),
            power_mean_watts: Some(500.0),
            ..GpuReading::default()
        };
        assert!(!is_low_power(&reading, &info, None));
        let lowered = GpuReading { power_mean_watts: Some(104.0), power_limit_watts: Some(300.0), ..reading };
        assert!(!is_low_power(&lowered, &info, None));
        assert!(is_low_power(&lowered, &info, Some(95.0)));
    }

    #[test]
    fn nothing_is_said_without_readings() {
        let reading = GpuReading { utilization_percent: Some(100), power_watts: Some(50.0), ..GpuReading::default() };
        assert!(!is_low_power(&reading, &GpuInfo::default(), None), "no limit");
        let info = GpuInfo { power_limit_watts: Some(700.0), ..GpuInfo::default() };
        assert!(!is_low_power(&GpuReading { power_watts: None, ..reading.clone() }, &info, None), "no power");
        assert!(!is_low_power(&GpuReading { utilization_percent: None, ..reading }, &info, None), "a MIG parent");
    }
}
